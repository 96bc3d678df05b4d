"""Which of this host's addresses a peer sees."""

from __future__ import annotations

import contextlib
import socket


def local_address(peer: str, family: socket.AddressFamily = socket.AF_UNSPEC) -> str | None:
    """The address from which this host reaches `peer`, HOST:PORT; an IPv6 one in brackets, ready for a port.

    Nothing is sent: connecting a UDP socket only asks the routing table. None where the peer's name does not
    resolve, or no route leads to it.

    Args:
        family: the kind of address that is preferred where the peer has several.
    """
    host, _, port = peer.rpartition(":")
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)
        for kind, _, _, _, address in sorted(found, key=lambda entry: entry[0] != family):
            with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                own = str(probe.getsockname()[0])
                return f"[{own}]" if kind == socket.AF_INET6 else own
    return None

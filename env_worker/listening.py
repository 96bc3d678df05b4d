"""Taking a port, all of it or not at all."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from env_worker.setting import SettingsError, is_loopback

if TYPE_CHECKING:
    import grpc.aio


class ServerStartError(Exception):
    """The address cannot be served on; the message says why and what to do."""


def check_exposure(flag: str, listen: str, *, insecure: bool) -> None:
    """SettingsError if `listen`, HOST:PORT of `flag`, is no loopback address and nobody says that it may be
    so."""
    if not (insecure or is_loopback(listen)):
        raise SettingsError(
            f"{flag} is {listen}, which is not loopback: the connection would be neither encrypted nor "
            "authenticated; listen on 127.0.0.1, or pass --insecure where the network itself is trusted"
        )


def cannot_listen(flag: str, listen: str, error: Exception) -> ServerStartError:
    """Why the address of `flag` cannot be served on."""
    return ServerStartError(
        f"cannot listen on {listen}: the port is in use, or the address is not this host's; choose another "
        f"with {flag}, or port 0 for a free one ({error})"
    )


def bind(server: grpc.aio.Server, listen: str) -> int:
    """Serve on `listen`, HOST:PORT; the port, which is a free one where it says 0.

    A name may stand for several addresses, as localhost does for 127.0.0.1 and ::1, and gRPC is content with
    one of them: beside a server on 127.0.0.1 a second one would start, and callers would find either.

    Raises:
        RuntimeError: one of the addresses is taken at that port, or none of them is this host's.
    """
    host, _, port = listen.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise RuntimeError(f"{host} does not resolve: {error}") from None
    for family, kind, protocol, _, address in found if int(port) else ():
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As gRPC does: a port whose connections linger is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            # Others, such as a host without IPv6, are for gRPC to judge.
            if error.errno == errno.EADDRINUSE:
                raise RuntimeError(f"{address[0]} port {port} is taken") from None
    return server.add_insecure_port(listen)


async def give_up_ports(server: grpc.aio.Server) -> None:
    """Serve no more, also where nothing was served yet: what such a server has bound, gRPC gives back only
    when it was started, and so for a moment it is."""
    await server.start()
    await server.stop(None)

"""Taking a port, all of it or not at all."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc.aio


class StartError(RuntimeError):
    """The broker cannot serve; the message says why and what to do."""


def bind(server: grpc.aio.Server, listen: str) -> int:
    """Serve on `listen`, HOST:PORT; the port, which is a free one where it says 0.

    A name may stand for several addresses, as localhost does for 127.0.0.1 and ::1, and gRPC is content with
    one of them: beside a server on 127.0.0.1 a second one would start, and callers would find either.

    Raises:
        StartError: one of the addresses is taken at that port, or none of them is this host's.
    """
    try:
        return _bind(server, listen)
    except RuntimeError as error:
        raise StartError(
            f"cannot listen on {listen} ({error}); is another server on that port? Choose another, or port 0"
        ) from None


def _bind(server: grpc.aio.Server, listen: str) -> int:
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

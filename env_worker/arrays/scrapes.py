"""An HTTP server for scrapes: few at once, and none for long."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from wsgiref.types import WSGIApplication

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
"""Each has a thread. Prometheus needs one or two."""
MAX_SECONDS: Final = 10.0
"""For a connection, from its first byte to its last: Prometheus itself waits no longer."""
_LOOK_SECONDS: Final = 0.5


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Serves a WSGI application on a thread of its own, from when it is made until `close`. A connection
    beyond MAX_CONNECTIONS is closed at once, and one that is not over after MAX_SECONDS is closed too:
    whoever sends nothing, or too slowly, or does not read, costs the process no more than that.

    Args:
        host: a name or an address, with the brackets of IPv6 taken off.
        port: 0 picks a free one.

    OSError if the address cannot be had.
    """

    daemon_threads = True
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(
        self, host: str, port: int, app: WSGIApplication, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = found[0][0], found[0][4][0]
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._open: Final[dict[socket.socket, float]] = {}
        """Connection -> when it was accepted."""
        super().__init__((str(address), port), _Handler)
        self.set_app(app)
        self._thread: Final = threading.Thread(
            target=self.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more, and end what is under way. Takes up to half a second."""
        self.shutdown()
        self.server_close()
        self._thread.join()
        self._end(0.0)

    def verify_request(self, request: Any, client_address: object) -> bool:
        """Whether there is room for one more."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                return False
            self._open[request] = self._clock()
        return True

    def service_actions(self) -> None:
        """Called by `serve_forever`, between connections and a few times a second."""
        self._end(MAX_SECONDS)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is over, or was not served."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """What a connection ended with is its caller's affair, and nothing for standard error."""
        logger.debug("a scrape failed", exc_info=True)

    def _end(self, seconds: float) -> None:
        """End the connections that are open for so long. Their threads close them."""
        now = self._clock()
        with self._lock:
            for connection, since in self._open.items():
                if now - since >= seconds:
                    with contextlib.suppress(OSError):  # its caller was quicker
                        connection.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: whoever scrapes does so every few seconds."""

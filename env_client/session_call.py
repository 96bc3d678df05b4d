"""One stream of a session, between its opening and its end."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from envtrio.v1.env_service_pb2 import Confirm, SessionGoodbye, SessionOpen, SessionRequest

from env_client.request import PROTOCOL_GENERATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envtrio.v1.env_service_pb2 import SessionResponse

_JOIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Writable:
    """The stream takes a frame now: the one before it has left. Posted only to who found it was not so."""

    call: SessionCall


@dataclass(frozen=True, slots=True)
class Received:
    """A frame came."""

    call: SessionCall
    response: SessionResponse


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream is over; without an error its status was OK."""

    call: SessionCall
    error: grpc.RpcError | None


CallEvent: TypeAlias = Writable | Received | Ended


class SessionCall:
    """A Session call with a thread that reads it. What happens to it is posted; its methods do not block.

    Nothing is buffered: whoever writes asks `is_writable` first, so that what comes while a write is under
    way leaves together.

    Args:
        method: makes the call.
        session_id: the session.
        epoch: one more than the last call's.
        post: gets the events, in the call's own threads.
    """

    def __init__(self, method: Any, session_id: str, epoch: int, post: Callable[[CallEvent], object]) -> None:
        self._opening = SessionOpen(
            session_id=session_id, epoch=epoch, protocol_generation=PROTOCOL_GENERATION
        )
        self._post = post
        self._frames: queue.SimpleQueue[SessionRequest | None] = queue.SimpleQueue()
        # Each is set on one side and then the other looked at, so that one side always sees both.
        self._writable = False
        self._wanted = False
        self._call: Any = method(self._requests())
        self._reader = threading.Thread(target=self._read, name="envtrio-session-reader", daemon=True)
        self._reader.start()

    def is_writable(self) -> bool:
        """Whether a frame may be sent. If not, `Writable` is posted when it may."""
        if self._writable:
            return True
        self._wanted = True
        return self._writable

    def confirm(self, request_ids: Sequence[str]) -> None:
        """Send a Confirm frame. Only when it is writable."""
        self._writable = False
        self._frames.put(SessionRequest(confirm=Confirm(request_ids=request_ids)))

    def say_goodbye(self) -> None:
        """Send the last frame. Only when it is writable."""
        self._writable = False
        self._frames.put(SessionRequest(goodbye=SessionGoodbye()))
        self._frames.put(None)

    def cancel(self) -> None:
        """End it at once. Idempotent."""
        self._call.cancel()
        self._frames.put(None)

    def join(self) -> None:
        """Wait for the thread of a call that is over; bounded."""
        self._reader.join(_JOIN_SECONDS)

    def _requests(self) -> Iterator[SessionRequest]:
        yield SessionRequest(open=self._opening)
        while True:
            self._writable = True
            if self._wanted:
                self._wanted = False
                self._post(Writable(self))
            frame = self._frames.get()
            if frame is None:
                return
            yield frame

    def _read(self) -> None:
        error: grpc.RpcError | None = None
        try:
            for response in self._call:
                for frame in (response, *response.more):
                    self._post(Received(self, frame))
        except grpc.RpcError as raised:
            error = raised
        finally:
            self._frames.put(None)  # Or grpc's own thread would wait in `_requests` for ever.
            self._post(Ended(self, error))

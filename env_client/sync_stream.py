"""One run as a synchronous stream of deltas that ends with an episode, or with a cancel."""

from __future__ import annotations

import inspect
import queue
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from env_client.errors import EnvError
from env_client.intake import Intake, cause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.episode_pb2 import Episode

    from env_client.session_driver import Settlement

_T = TypeVar("_T")


class SyncEpisodeStream:
    """A run under way; a context manager and iterator. As `EpisodeStream`, for one thread at a time."""

    def __init__(self, intake: Intake, call: Callable[[], Any], timeout: float | None) -> None:
        self._intake = intake
        self._make_call = call
        self._call: Any = None
        self._timeout = timeout
        self._deadline: float | None = None
        self._landed: deque[TraceDelta] = deque()
        self._failed: EnvError | None = None

    @property
    def request_id(self) -> str:
        """The run's id. A capability: whoever knows it can cancel the run."""
        return self._intake.request_id

    @property
    def received_bytes(self) -> int:
        """Payload bytes of the stream so far."""
        return self._intake.received_bytes

    @property
    def episode(self) -> Episode | None:
        """The episode, assembled and checked; None until it is delivered."""
        return self._intake.episode

    def __enter__(self) -> Self:
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        self._call = self._make_call()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon("the caller left the stream" if error is None else cause_of(error))
        if self._failed is not None:
            # The exception holds this stream, by its traceback. Were it held in turn, both would wait
            # for the garbage collector.
            self._failed = self._intake.taken_back()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TraceDelta:
        """The next delta, already applied. Stops when the episode is delivered."""
        while not self._landed:
            batch = self._guarded(self._next_batch)
            if batch is None:
                raise StopIteration
            self._landed.extend(batch)
        return self._landed.popleft()

    def result(self, on_delta: Callable[[TraceDelta], object] | None = None) -> Episode:
        """Read the rest of the stream and return the episode; `on_delta`, a plain function, gets each further
        delta.

        Raises:
            TypeError: `on_delta` is asynchronous.
            EnvError: as `EnvClient.run`. What `on_delta` raises comes through.
        """
        check_plain(on_delta)
        return self._guarded(lambda: self._drain(on_delta))

    def abandon(self, cause: str) -> None:
        """End the run, unless its episode is delivered. Idempotent, does not block."""
        if self._intake.home.is_foreign:
            return  # The run is the parent's, and so is the connection.
        self._intake.abandon(cause)
        if self._call is not None:
            self._call.cancel()

    def _drain(self, on_delta: Callable[[TraceDelta], object] | None) -> Episode:
        while True:
            while self._landed:
                delta = self._landed.popleft()
                if on_delta is not None:
                    check_plain(on_delta, on_delta(delta))
                    self._check_deadline()
            batch = self._next_batch()
            if batch is None:
                assert self._intake.episode is not None
                return self._intake.episode
            if on_delta is not None:
                self._landed.extend(batch)

    def _next_batch(self) -> Sequence[TraceDelta] | None:
        """The deltas of the next message; None when the episode is delivered."""
        if self._intake.episode is not None:
            return None
        if self._call is None:
            raise RuntimeError("the stream was not entered: use `with client.stream(...) as stream`")
        try:
            data: bytes | None = next(self._call, None)
        except grpc.RpcError as error:
            # The error is the call itself, so its traceback would hold it, and this stream with it.
            raise self._intake.ended(error, self._timeout) from error.with_traceback(None)
        if data is not None:
            return self._intake.take(data)
        episode = self._intake.conclude()
        self._check_deadline()
        self._intake.deliver(episode, self._confirmed())
        return None

    def _confirmed(self) -> Settlement:
        answer: queue.SimpleQueue[Settlement] = queue.SimpleQueue()
        self._intake.confirm(answer.put)
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            return answer.get(timeout=left)
        except queue.Empty:
            raise self._intake.expired(self._timeout) from None

    def _guarded(self, work: Callable[[], _T]) -> _T:
        self._intake.home.check()
        if self._failed is not None:
            raise self._failed
        try:
            return work()
        except BaseException as error:  # KeyboardInterrupt among them.
            self._failed = error if isinstance(error, EnvError) else self._intake.taken_back()
            self.abandon(cause_of(error))
            raise

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise self._intake.expired(self._timeout)


def check_plain(on_delta: Callable[[TraceDelta], object] | None, returned: object = None) -> None:
    """TypeError for an asynchronous function, which nobody awaits here. Some show it by what they return."""
    if inspect.iscoroutinefunction(on_delta) or inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # or Python warns that it was never awaited
        raise TypeError(
            f"on_delta is {on_delta!r}, an asynchronous function, which the synchronous client cannot await; "
            "give a plain one, or use EnvClient"
        )

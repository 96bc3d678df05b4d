"""One run as an asynchronous stream of deltas that ends with an episode, or with a cancel."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import grpc

from env_client.errors import EnvError
from env_client.intake import BIG_BYTES, Intake, cause_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableSet, Sequence
    from types import TracebackType

    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.episode_pb2 import Episode

    from env_client.lane import Lane
    from env_client.lane_run import RunCall
    from env_client.session_driver import Settlement
    from env_client.side_thread import SideThread

    OnDelta: TypeAlias = Callable[[TraceDelta], Awaitable[object] | object]

_T = TypeVar("_T")

_LANE_SECONDS: Final = 1.0
"""How long a confirmation in the lane may take; nobody repeats it there."""


class EpisodeStream:
    """A run under way. Made by `EnvClient.stream`; an asynchronous context manager and iterator.

    Iterating yields each `TraceDelta` as it lands. When the iteration has come to its end, or `result()` has
    returned, the episode is delivered: the server has confirmed it, if it has sessions. Leaving the context
    before that cancels the run, whatever the way out.

    Args:
        intake: the run.
        begin: sends the request; returns the call, and the lane that may confirm the delivery.
        timeout: seconds from entering the context until the episode must have been delivered; None: no limit.
        entered: holds the stream while its context is entered, so that closing the client can end it.
        side: does what is too big for the event loop.
    """

    def __init__(
        self,
        intake: Intake,
        begin: Callable[[], tuple[RunCall, Lane]],
        timeout: float | None,
        entered: MutableSet[EpisodeStream],
        side: SideThread,
    ) -> None:
        self._intake = intake
        self._begin = begin
        self._call: RunCall | None = None
        self._lane: Lane | None = None
        self._timeout = timeout
        self._entered = entered
        self._side = side
        self._deadline: float | None = None
        self._landed: deque[TraceDelta] = deque()
        self._failed: BaseException | None = None
        self._answer: asyncio.Future[Any] | None = None

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

    async def __aenter__(self) -> EpisodeStream:
        if self._timeout is not None:
            self._deadline = asyncio.get_running_loop().time() + self._timeout
        self._call, self._lane = self._begin()
        self._entered.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.discard(self)
        # Awaits nothing: it also runs in coroutines that are closed while their loop is torn down.
        self.abandon("the caller left the stream" if error is None else cause_of(error))
        if self._failed is not None:
            # The exception holds this stream, by its traceback. Were it held in turn, both would wait
            # for the garbage collector.
            self._failed = self._intake.taken_back()

    def __aiter__(self) -> EpisodeStream:
        return self

    async def __anext__(self) -> TraceDelta:
        """The next delta, already applied.

        Raises:
            StopAsyncIteration: the episode is delivered.
            EnvError: as `EnvClient.run`.
        """
        while not self._landed:
            batch = await self._guarded(self._next_batch)
            if batch is None:
                raise StopAsyncIteration
            self._landed.extend(batch)
        return self._landed.popleft()

    async def result(self, on_delta: OnDelta | None = None) -> Episode:
        """Read the rest of the stream and return the episode.

        Args:
            on_delta: gets each further delta; may be a plain or an asynchronous function.

        Raises:
            EnvError: as `EnvClient.run`. What `on_delta` raises comes through.
        """
        return await self._guarded(lambda: self._drain(on_delta))

    def abandon(self, cause: str) -> None:
        """End the run, unless its episode is delivered. Idempotent, does not block."""
        if self._intake.home.is_foreign:
            return  # The run is the parent's, and so is the connection.
        self._intake.abandon(cause)
        if self._call is not None:
            # grpc.aio does not cancel calls that are merely dropped. On a loop that is closed already it
            # cannot, and need not: the call ended with the loop.
            with contextlib.suppress(RuntimeError):
                self._call.cancel()
                if self._answer is not None:
                    self._answer.cancel()

    async def _drain(self, on_delta: OnDelta | None) -> Episode:
        while True:
            while self._landed:
                delta = self._landed.popleft()
                if on_delta is not None:
                    outcome = on_delta(delta)
                    if inspect.isawaitable(outcome):
                        await outcome
            batch = await self._next_batch()
            if batch is None:
                assert self._intake.episode is not None
                return self._intake.episode
            if on_delta is not None:
                self._landed.extend(batch)

    async def _next_batch(self) -> Sequence[TraceDelta] | None:
        """The deltas of the next message; None when the episode is delivered."""
        if self._intake.episode is not None:
            return None
        if self._call is None:
            raise RuntimeError("the stream was not entered: use `async with client.stream(...) as stream`")
        try:
            data: Any = await self._call.read()
        except grpc.RpcError as error:
            raise self._intake.ended(error, self._timeout) from error
        if data is grpc.aio.EOF:
            conclude = self._intake.conclude
            episode = await self._side.do(conclude) if self._intake.is_big else conclude()
            self._check_deadline()
            self._intake.deliver(episode, await self._confirmed())
            return None
        if len(data) > BIG_BYTES:
            return await self._side.do(self._intake.take, data)
        return self._intake.take(data)

    async def _confirmed(self) -> Settlement:
        return await self._confirmed_in_lane() or await self._confirmed_in_session()

    async def _confirmed_in_lane(self) -> Settlement | None:
        """Confirm it where that costs little. None where no lane is open, or its answer is not the last word:
        then it is for the session, which repeats it, and knows when its time is over."""
        self._intake.check_wanted()
        assert self._lane is not None, "it was entered"
        if (answer := self._lane.confirm(self.request_id)) is None:
            return None
        self._answer = answer
        try:
            async with asyncio.timeout(_LANE_SECONDS):
                verdict: Settlement | None = await answer
                return verdict
        except TimeoutError:
            return None
        finally:
            self._lane.forget(self.request_id)

    async def _confirmed_in_session(self) -> Settlement:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Settlement] = loop.create_future()

        def settle(settlement: Settlement) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(_set, answer, settlement)

        self._answer = answer
        self._intake.confirm(settle)
        return await answer

    async def _guarded(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do `work` within the deadline; whatever ends it otherwise ends the run at once."""
        self._intake.home.check()
        if self._failed is not None:
            raise self._failed
        limit = asyncio.timeout_at(self._deadline)
        try:
            async with limit:
                return await work()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and not task.cancelling() and self._failed is None:
                # Nobody cancelled the caller: the call was ended by `abandon`, when the client was closed.
                self._fail(error, "the client was closed")
                raise self._intake.taken_back() from error
            self._fail(error, "the caller was cancelled")
            raise
        except TimeoutError as error:
            if not limit.expired():  # on_delta's own.
                self._fail(error, cause_of(error))
                raise
            # Not by way of a local variable, which the exception's traceback would hold as well.
            raise self._fail(self._intake.expired(self._timeout), "the deadline passed") from error
        except BaseException as error:
            self._fail(error, cause_of(error))
            raise

    def _fail(self, error: BaseException, cause: str) -> EnvError:
        self._failed = failed = error if isinstance(error, EnvError) else self._intake.taken_back()
        self.abandon(cause)
        return failed

    def _check_deadline(self) -> None:
        # Work that does not suspend is not interrupted by asyncio's timeout.
        if self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline:
            raise self._intake.expired(self._timeout)


def _set(answer: asyncio.Future[Settlement], settlement: Settlement) -> None:
    if not answer.done():
        answer.set_result(settlement)

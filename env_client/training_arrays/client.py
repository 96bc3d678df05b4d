"""The asynchronous client of training arrays. Its event loop only waits: the bytes come in threads."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, overload

from env_client.training_arrays.arguments import list_of
from env_client.training_arrays.core import ArrayCore
from env_client.training_arrays.sync import RELEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import grpc
    from numpy.typing import NDArray

    from env_client.errors import EnvError
    from env_client.training_arrays.arguments import Tokens
    from env_client.training_arrays.batch import Batch, Job
    from env_client.training_arrays.progress import OnProgress
    from env_client.training_arrays.reference import Reference

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class ArrayClient:
    """Fetches training arrays straight from the workers that keep them: `async with ArrayClient() as client`.

    As `SyncArrayClient`, which has the words on each call; only how they wait is different. A call whose task
    is cancelled ends its gRPC call at once, and only then raises CancelledError: nothing is written to `out`
    any more, however often it was cancelled. The bytes come in `concurrency` threads, references are checked
    in others, and neither stalls the event loop.

    Args:
        hosts: "HOST" or "HOST:PORT" of the workers that may be called; None: all.
        credentials: of TLS channels, and what calls carry; they need `hosts`. None: in the clear.
        concurrency: how many fetches are under way at once, at most; others wait for their turn.
        lost_seconds: how long a worker that cannot be reached is tried again; then it is remembered.
        shared_memory: map the worker's memory where it is of this host and user; False: stream always.
    """

    def __init__(
        self,
        *,
        hosts: Collection[str] | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        concurrency: int = 8,
        lost_seconds: float = 10.0,
        shared_memory: bool = True,
    ) -> None:
        self._core = ArrayCore(
            hosts=hosts,
            credentials=credentials,
            concurrency=concurrency,
            lost_seconds=lost_seconds,
            shared_memory=shared_memory,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def fetch(
        self,
        reference: Reference,
        fields: Collection[str] | None = None,
        tokens: slice | None = None,
        *,
        out: Mapping[str, NDArray[Any]] | None = None,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """As `SyncArrayClient.fetch`; `on_progress` is a plain function, called on this event loop."""
        told = _LoopProgress.of(on_progress)
        job = self._core.fetch_job(reference, fields, tokens, out, told)
        (arrays,) = await self._together([job], timeout, told)
        return cast("dict[str, NDArray[Any]]", arrays)

    @overload
    async def fetch_many(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None = None,
        tokens: Tokens = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[dict[str, NDArray[Any]]]: ...

    @overload
    async def fetch_many(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None = None,
        tokens: Tokens = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        return_exceptions: bool,
    ) -> list[dict[str, NDArray[Any]] | EnvError]: ...

    async def fetch_many(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None = None,
        tokens: Tokens = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """As `SyncArrayClient.fetch_many`; `on_progress` is a plain function, called on this event loop."""
        told = _LoopProgress.of(on_progress)
        held = list_of(references, "fetch(reference)")
        jobs = await self._aside(
            lambda: self._core.fetch_jobs(held, fields, tokens, told, collects=return_exceptions)
        )
        return await self._together(jobs, timeout, told, collects=return_exceptions)

    async def release(self, *references: Reference, timeout: float = RELEASE_SECONDS) -> int:
        """As `SyncArrayClient.release`."""
        return await self._released(self._core.checked_release_job(references), timeout)

    async def release_owner(self, address: str, owner: str, *, timeout: float = RELEASE_SECONDS) -> int:
        """As `SyncArrayClient.release_owner`."""
        return await self._released(self._core.release_owner_job(address, owner), timeout)

    @asynccontextmanager
    async def releasing(self, references: Iterable[Reference]) -> AsyncIterator[list[Reference]]:
        """As `SyncArrayClient.releasing`, for `async with`; also when the block is cancelled."""
        held = list_of(references, "releasing([reference])")
        groups = await self._aside(lambda: self._core.groups(held))
        release = self._core.release_job(groups)
        try:
            yield held
        except BaseException:
            try:
                await self._released(release, RELEASE_SECONDS)
            except Exception as error:
                _LOG.warning("not all of %d references could be released: %s", len(held), error)
            raise
        await self._released(release, RELEASE_SECONDS)

    async def close(self) -> None:
        """Give up what is being fetched, and disconnect. Arrays that were fetched stay."""
        await asyncio.to_thread(self._core.close)

    async def _aside(self, function: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._core.aside(function))

    async def _released(self, job: Job[int], timeout: float) -> int:
        batch = self._core.start([job], timeout, fetches=False)
        # No time limit here: a release minds its own, from when it has a thread.
        await _end_of(batch, None)
        return sum(batch.results())

    async def _together(
        self,
        jobs: Sequence[Job[_T]],
        timeout: float | None,
        progress: _LoopProgress | None = None,
        *,
        collects: bool = False,
    ) -> list[Any]:
        batch = self._core.start(jobs, timeout, collects=collects)
        await _end_of(batch, timeout)
        if progress is not None and progress.error is not None:
            raise progress.error
        return batch.results()


async def _end_of(batch: Batch[Any], timeout: float | None) -> None:
    """Wait until a batch has ended, or its time is over; no thread works on it any more in any case."""
    ended = asyncio.wrap_future(batch.ended)
    try:
        while not ended.done() and (left := None if timeout is None else batch.bounds.seconds_left()) != 0.0:
            await asyncio.wait([ended], timeout=left)
    finally:
        batch.give_up()
        await _end_however_cancelled(ended)


async def _end_however_cancelled(future: asyncio.Future[None]) -> None:
    """Wait for a future that will soon be done; only then raise a cancel that came meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _LoopProgress:
    """Carries progress from the fetching threads to the event loop of the caller."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self.error: Exception | None = None

    @classmethod
    def of(cls, on_progress: OnProgress | None) -> Self | None:
        return None if on_progress is None else cls(on_progress)

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self.error is not None:
            raise self.error  # In a fetching thread, whose fetch it ends.
        self._loop.call_soon_threadsafe(self._tell, done_bytes, total_bytes)

    def _tell(self, done_bytes: int, total_bytes: int) -> None:
        if self.error is None:
            try:
                self._on_progress(done_bytes, total_bytes)
            except Exception as error:
                self.error = error

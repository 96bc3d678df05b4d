"""The asynchronous client of training arrays. Its event loop only waits: the bytes come in threads."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from env_client.errors import FetchDeadlineError
from env_client.training_arrays.core import ArrayCore, first_error
from env_client.training_arrays.sync import RELEASE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import grpc
    from numpy.typing import NDArray

    from env_client.training_arrays.core import Job
    from env_client.training_arrays.progress import OnProgress
    from env_client.training_arrays.reference import Reference

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class ArrayClient:
    """Fetches training arrays straight from the workers that keep them: `async with ArrayClient() as client`.

    As `SyncArrayClient`, which has the words on each call; only how they wait is different. A call whose task
    is cancelled ends its gRPC call at once, and only then raises CancelledError: nothing is written to `out`
    any more. The bytes come in `concurrency` threads, and never stall the event loop.

    Args:
        hosts: "HOST" or "HOST:PORT" of the workers that may be called; None: all.
        credentials: of TLS channels; None: in the clear.
        concurrency: how many fetches are under way at once, at most; others wait for their turn.
        lost_seconds: how long a worker that cannot be reached is tried again.
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
        return arrays

    async def fetch_many(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, NDArray[Any]]]:
        """As `SyncArrayClient.fetch_many`; `on_progress` is a plain function, called on this event loop."""
        told = _LoopProgress.of(on_progress)
        return await self._together(self._core.fetch_jobs(references, fields, told), timeout, told)

    async def release(self, *references: Reference, timeout: float = RELEASE_SECONDS) -> int:
        """As `SyncArrayClient.release`."""
        return sum(await self._together(self._core.release_jobs(references), timeout, releases=True))

    async def release_owner(self, address: str, owner: str, *, timeout: float = RELEASE_SECONDS) -> int:
        """As `SyncArrayClient.release_owner`."""
        job = self._core.release_owner_job(address, owner)
        return sum(await self._together([job], timeout, releases=True))

    @asynccontextmanager
    async def releasing(self, references: Iterable[Reference]) -> AsyncIterator[list[Reference]]:
        """As `SyncArrayClient.releasing`, for `async with`; also when the block is cancelled."""
        held = list(references)
        self._core.release_jobs(held)
        try:
            yield held
        except BaseException:
            try:
                await self.release(*held)
            except Exception as error:
                _LOG.warning("%d references could not be released: %s", len(held), error)
            raise
        await self.release(*held)

    async def close(self) -> None:
        """Give up what is being fetched, and disconnect. Arrays that were fetched stay."""
        await asyncio.to_thread(self._core.close)

    async def _together(
        self,
        jobs: Sequence[Job[_T]],
        timeout: float | None,
        progress: _LoopProgress | None = None,
        *,
        releases: bool = False,
    ) -> list[_T]:
        started = self._core.start(jobs, timeout, releases=releases)
        if not started:
            return []
        waiting = [asyncio.wrap_future(each.future) for each in started]
        # A release that fails is no reason to leave the others.
        until = asyncio.ALL_COMPLETED if releases else asyncio.FIRST_EXCEPTION
        try:
            # The timeout is for those that still wait for a thread; those that have one mind it themselves.
            limit = started[0].bounds.seconds_left()
            _, left = await asyncio.wait(waiting, timeout=limit, return_when=until)
            error = first_error(started)
            if left and error is None:
                error = FetchDeadlineError(
                    f"{len(left)} of {len(started)} calls for arrays did not end within {timeout} s: repeat "
                    "them, with a larger timeout, or with more concurrency if they had to wait"
                )
        finally:
            for each in started:
                each.give_up()
            await asyncio.wait(waiting)
            for future in waiting:
                if not future.cancelled():
                    future.exception()  # So that asyncio does not report it as forgotten.
        if error is None and progress is not None:
            error = progress.error
        if error is not None:
            raise error
        return [future.result() for future in waiting]


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

"""What both clients of training arrays are made of: checks, threads, and an end."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from env_client.errors import FetchCancelledError, InvalidRequestError
from env_client.home import Home
from env_client.request import checked_timeout
from env_client.training_arrays.answer import Ask
from env_client.training_arrays.body import check_out
from env_client.training_arrays.bounds import CallBounds
from env_client.training_arrays.fetch import ArrayFetcher
from env_client.training_arrays.hosts import AllowedHosts, checked_address
from env_client.training_arrays.links import ArrayLinks
from env_client.training_arrays.progress import Progress
from env_client.training_arrays.reference import ArrayReference
from env_client.training_arrays.release import ArrayReleaser, grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import grpc
    from numpy.typing import NDArray

    from env_client.training_arrays.body import Out
    from env_client.training_arrays.progress import OnProgress
    from env_client.training_arrays.reference import Reference

    Arrays: TypeAlias = dict[str, NDArray[Any]]

_T = TypeVar("_T")
Job: TypeAlias = "Callable[[CallBounds], _T]"
"""Work for one thread, within bounds."""

_CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Started(Generic[_T]):
    """A job that a thread works on, or will."""

    future: Future[_T]
    bounds: CallBounds

    def give_up(self) -> None:
        """Nobody wants it any more: it ends soon. Nothing happens to one that has ended."""
        self.future.cancel()
        self.bounds.cancel()


class ArrayCore:
    """Jobs of a client of training arrays. The arguments are those of `SyncArrayClient`. Thread-safe."""

    def __init__(
        self,
        *,
        hosts: Collection[str] | None,
        credentials: grpc.ChannelCredentials | None,
        concurrency: int,
        lost_seconds: float,
        shared_memory: bool,
    ) -> None:
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidRequestError(f"concurrency {concurrency!r}: expected 1 or more; 8 is a good number")
        if not lost_seconds >= 0:
            raise InvalidRequestError(f"lost_seconds {lost_seconds!r}: expected 0 or more seconds")
        self._hosts = AllowedHosts(hosts)
        self._concurrency = concurrency
        self._links = ArrayLinks(credentials)
        self._fetcher = ArrayFetcher(self._links, lost_seconds, shared_memory)
        self._releaser = ArrayReleaser(self._links, lost_seconds)
        self._home = Home()
        self._changed = threading.Condition()
        self._open: set[CallBounds] = set()
        self._is_closed = False
        # Two, so that a release need not wait for the end of a long fetch.
        self._fetching: ThreadPoolExecutor | None = None
        self._releasing: ThreadPoolExecutor | None = None

    def fetch_job(
        self,
        reference: Reference,
        fields: Collection[str] | None,
        tokens: slice | None,
        out: Out | None,
        on_progress: OnProgress | None,
    ) -> Job[Arrays]:
        """The job that fetches one reference; nothing was sent yet.

        Raises:
            EnvError: an argument is malformed, or asks for what is not there.
        """
        ask = self._ask(reference, fields, tokens)
        if out is not None:
            check_out(out, ask)
        part = Progress(on_progress).part(ask.estimated_bytes)
        return functools.partial(self._fetcher.fetch, ask, out or {}, part)

    def fetch_jobs(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None,
        on_progress: OnProgress | None,
    ) -> list[Job[Arrays]]:
        """The jobs that fetch references, as `fetch_job`, with one progress for all."""
        progress = Progress(on_progress)
        asks = [self._ask(reference, fields, None) for reference in references]
        parts = [progress.part(ask.estimated_bytes) for ask in asks]
        return [
            functools.partial(self._fetcher.fetch, ask, {}, part)
            for ask, part in zip(asks, parts, strict=True)
        ]

    def release_jobs(self, references: Iterable[Reference]) -> list[Job[int]]:
        """The jobs that release references, one for each worker.

        Raises:
            InvalidRequestError: a reference is malformed, or of a host that is not on the list.
        """
        groups = grouped([ArrayReference.of(reference) for reference in references])
        self._hosts.check(group.address for group in groups)
        return [functools.partial(self._releaser.references, group) for group in groups]

    def release_owner_job(self, address: str, owner: str) -> Job[int]:
        """The job that releases an owner's arrays at one worker.

        Raises:
            InvalidRequestError: an argument is malformed, or the host is not on the list.
        """
        checked_address(address, "address")
        self._hosts.check([address])
        if not isinstance(owner, str) or not owner:
            raise InvalidRequestError(
                f"owner: found {owner!r}, expected a text that is not empty, as it was given to the runs",
                metadata={"field": "owner"},
            )
        return functools.partial(self._releaser.owner, address, owner)

    def run(self, job: Job[_T], timeout: float | None) -> _T:
        """Do a job in this thread, within `timeout` seconds.

        Raises:
            EnvError: as the job does.
            RuntimeError: the client was closed, or used in another process.
        """
        return self._within(CallBounds(checked_timeout(timeout)), job)

    def start(
        self, jobs: Sequence[Job[_T]], timeout: float | None, *, releases: bool = False
    ) -> list[Started[_T]]:
        """Have threads do jobs, `concurrency` at once, each within `timeout` seconds from now.

        A fetch that fails ends the others; a release that fails is no reason to leave the others.
        """
        limit = checked_timeout(timeout)
        pool = self._pool(releases=releases)
        all_bounds = [CallBounds(limit) for _ in jobs]
        ends_with_it = [] if releases else all_bounds
        return [
            Started(pool.submit(self._within, bounds, job, ends_with_it), bounds)
            for job, bounds in zip(jobs, all_bounds, strict=True)
        ]

    def close(self) -> None:
        """Give up what is under way, wait for its end, and disconnect. Idempotent."""
        if self._home.is_foreign:
            return
        with self._changed:
            self._is_closed = True
            for bounds in self._open:
                bounds.cancel()
            pools = [pool for pool in (self._fetching, self._releasing) if pool is not None]
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        with self._changed:
            self._changed.wait_for(lambda: not self._open, _CLOSE_SECONDS)
        self._links.close()

    def _ask(self, reference: Reference, fields: Collection[str] | None, tokens: slice | None) -> Ask:
        checked = ArrayReference.of(reference)
        self._hosts.check([checked.address])
        asked = checked.fields(fields)
        start, end = checked.tokens_of(tokens)
        return Ask(checked, asked, start, end)

    def _pool(self, *, releases: bool) -> ThreadPoolExecutor:
        self._home.claim()
        with self._changed:
            self._check_open()
            if releases:
                self._releasing = self._releasing or ThreadPoolExecutor(self._concurrency, "envtrio-release")
                return self._releasing
            self._fetching = self._fetching or ThreadPoolExecutor(self._concurrency, "envtrio-fetch")
            return self._fetching

    def _within(self, bounds: CallBounds, job: Job[_T], ends_with_it: Iterable[CallBounds] = ()) -> _T:
        try:
            with self._opened(bounds):
                return job(bounds)
        except BaseException:
            # In this thread, before it takes the next job.
            for other in ends_with_it:
                other.cancel()
            raise

    @contextmanager
    def _opened(self, bounds: CallBounds) -> Iterator[None]:
        self._home.claim()
        with self._changed:
            self._check_open()
            self._open.add(bounds)
        try:
            yield
        finally:
            with self._changed:
                self._open.discard(bounds)
                self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed: make a new one")


def first_error(started: Iterable[Started[Any]]) -> BaseException | None:
    """The error of the first job that failed by itself, else of one that was given up; None: none failed."""
    errors: list[BaseException] = []
    for each in started:
        if each.future.cancelled():  # It had no thread yet when the client was closed.
            errors.append(FetchCancelledError("a call for arrays was given up before it began"))
        elif each.future.done() and (error := each.future.exception()):
            errors.append(error)
    own = [error for error in errors if not isinstance(error, FetchCancelledError)]
    return next(iter([*own, *errors]), None)

"""What both clients of training arrays are made of: jobs, threads, and an end."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from env_client.errors import EnvError, InvalidRequestError
from env_client.home import Home
from env_client.request import checked_timeout
from env_client.training_arrays.arguments import Arguments
from env_client.training_arrays.batch import Batch
from env_client.training_arrays.body import check_out
from env_client.training_arrays.bounds import CallBounds
from env_client.training_arrays.excerpt import excerpt
from env_client.training_arrays.fetch import ArrayFetcher
from env_client.training_arrays.hosts import AllowedHosts
from env_client.training_arrays.links import ArrayLinks
from env_client.training_arrays.lost import LostWorkers
from env_client.training_arrays.progress import Progress
from env_client.training_arrays.release import ArrayReleaser

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import grpc
    from numpy.typing import NDArray

    from env_client.training_arrays.arguments import Tokens
    from env_client.training_arrays.batch import Job
    from env_client.training_arrays.body import Out
    from env_client.training_arrays.groups import Group
    from env_client.training_arrays.progress import OnProgress
    from env_client.training_arrays.reference import Reference

    Arrays: TypeAlias = dict[str, NDArray[Any]]

_T = TypeVar("_T")

_CLOSE_SECONDS: Final = 5.0
_MAX_CONCURRENCY: Final = 1024
_OTHER_THREADS: Final = 32
"""For checks and releases of an asynchronous client, which must not wait for the end of long fetches."""


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
        is_count = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        if not is_count or not 0 < concurrency <= _MAX_CONCURRENCY:
            raise InvalidRequestError(
                f"concurrency: found {excerpt(concurrency)}, expected 1 to {_MAX_CONCURRENCY}; 8 are right",
                metadata={"field": "concurrency"},
            )
        if not isinstance(lost_seconds, int | float) or not lost_seconds >= 0:
            raise InvalidRequestError(
                f"lost_seconds: found {excerpt(lost_seconds)}, expected 0 or more seconds; 10 are right",
                metadata={"field": "lost_seconds"},
            )
        self._arguments = Arguments(AllowedHosts(hosts, credentials))
        self._concurrency = concurrency
        self._links = ArrayLinks(credentials)
        lost = LostWorkers()
        self._fetcher = ArrayFetcher(self._links, lost, lost_seconds, shared_memory)
        self._releaser = ArrayReleaser(self._links, lost, lost_seconds)
        self._home = Home()
        self._changed = threading.Condition()
        # What is under way, or waits for a thread; and how deep in jobs the thread that asks is.
        self._open: set[CallBounds] = set()
        self._inside = threading.local()
        self._is_closed = False
        self._fetching: ThreadPoolExecutor | None = None
        self._others: ThreadPoolExecutor | None = None

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
        ask = self._arguments.ask(reference, fields, tokens)
        if out is not None:
            check_out(out, ask)
        part = Progress(on_progress).part(ask.estimated_bytes)
        return functools.partial(self._fetcher.fetch, ask, out or {}, part)

    def fetch_jobs(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None,
        tokens: Tokens,
        on_progress: OnProgress | None,
        *,
        collects: bool,
    ) -> list[Job[Arrays]]:
        """The jobs that fetch references, as `fetch_job`, with one progress for all.

        Args:
            collects: whether what is wrong with one reference is raised by its job only.
        """
        progress = Progress(on_progress)
        jobs: list[Job[Arrays]] = []
        for ask in self._arguments.asks(references, fields, tokens):
            if isinstance(ask, EnvError):
                if not collects:
                    raise ask
                jobs.append(functools.partial(_raise, ask))
            else:
                part = progress.part(ask.estimated_bytes)
                jobs.append(functools.partial(self._fetcher.fetch, ask, {}, part))
        return jobs

    def groups(self, references: Iterable[Reference]) -> list[Group]:
        """What is to be released, by worker.

        Raises:
            InvalidRequestError: a reference is malformed, or of a host that is not on the list.
        """
        return self._arguments.groups(references)

    def release_job(self, groups: Sequence[Group]) -> Job[int]:
        """The job that releases them. Its time counts from when it has a thread."""
        return functools.partial(self._release, groups)

    def checked_release_job(self, references: Iterable[Reference]) -> Job[int]:
        """The job that checks references, and then releases them."""
        return lambda bounds: self._release(self.groups(references), bounds)

    def release_owner_job(self, address: str, owner: str) -> Job[int]:
        """The job that releases an owner's arrays at one worker.

        Raises:
            InvalidRequestError: an argument is malformed, or the host is not on the list.
        """
        self._arguments.owner(address, owner)

        def job(bounds: CallBounds) -> int:
            bounds.begin()
            return self._releaser.owner(address, owner, bounds)

        return job

    def run(self, job: Job[_T], timeout: float | None) -> _T:
        """Do a job in this thread, within `timeout` seconds.

        Raises:
            EnvError: as the job does.
            RuntimeError: the client was closed, or used in another process.
        """
        bounds = CallBounds(checked_timeout(timeout))
        self._home.claim()
        self._enter(bounds)
        try:
            with self._working():
                return job(bounds)
        finally:
            self._leave(bounds)

    def start(
        self,
        jobs: Sequence[Job[_T]],
        timeout: float | None,
        *,
        collects: bool = False,
        fetches: bool = True,
    ) -> Batch[_T]:
        """Have threads do jobs within `timeout` seconds, fetches `concurrency` at once.

        Args:
            collects: as `Batch` says.
        """
        batch = Batch(jobs, CallBounds(checked_timeout(timeout)), collects=collects)
        pool = self._pool(fetches=fetches)
        self._enter(batch.bounds)
        batch.ended.add_done_callback(lambda _: self._leave(batch.bounds))
        try:
            for _ in range(min(len(jobs), self._concurrency)):
                pool.submit(self._work, batch)
        except BaseException:
            batch.give_up()
            if not self._is_closed:  # There are no more threads to be had.
                raise
        return batch

    def aside(self, function: Callable[[], _T]) -> Future[_T]:
        """Have a thread do what takes moments, but too many of them for an event loop."""
        pool = self._pool(fetches=False)
        try:
            return pool.submit(function)
        except RuntimeError:
            self._check_open()  # It says more, where the client was closed right now.
            raise

    def close(self) -> None:
        """Give up what is under way, wait for its end, and disconnect. Idempotent.

        Called by what a job calls, such as progress, it does not wait: that job ends when it has returned.
        """
        if self._home.is_foreign:
            return
        with self._changed:
            self._is_closed = True
            for bounds in self._open:
                bounds.cancel()
            pools = [pool for pool in (self._fetching, self._others) if pool is not None]
        for pool in pools:
            # What is still queued there ends at once, and each batch with it; futures that were cancelled
            # would leave whoever waits for them waiting.
            pool.shutdown(wait=False)
        if not getattr(self._inside, "depth", 0):
            with self._changed:
                have_ended = self._changed.wait_for(lambda: not self._open, _CLOSE_SECONDS)
            for pool in pools:
                pool.shutdown(wait=have_ended)
        self._fetcher.close()
        self._links.close()

    def _release(self, groups: Sequence[Group], bounds: CallBounds) -> int:
        bounds.begin()
        return self._releaser.references(groups, bounds) if groups else 0

    def _pool(self, *, fetches: bool) -> ThreadPoolExecutor:
        self._home.claim()
        with self._changed:
            self._check_open()
            if fetches:
                self._fetching = self._fetching or ThreadPoolExecutor(self._concurrency, "envtrio-fetch")
                return self._fetching
            self._others = self._others or ThreadPoolExecutor(_OTHER_THREADS, "envtrio-release")
            return self._others

    def _work(self, batch: Batch[Any]) -> None:
        with self._working():
            batch.work()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """This thread does jobs: it must not wait for their end."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def _enter(self, bounds: CallBounds) -> None:
        with self._changed:
            self._check_open()
            self._open.add(bounds)

    def _leave(self, bounds: CallBounds) -> None:
        with self._changed:
            self._open.discard(bounds)
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the client is closed: make a new one")


def _raise(error: EnvError, _bounds: CallBounds) -> Any:
    raise error

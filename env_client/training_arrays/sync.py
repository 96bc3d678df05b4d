"""The synchronous client of training arrays, for trainers. Uses no event loop, and minds none that runs."""

from __future__ import annotations

import logging
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

from env_client.training_arrays.arguments import list_of
from env_client.training_arrays.core import ArrayCore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import grpc
    from numpy.typing import NDArray

    from env_client.errors import EnvError
    from env_client.training_arrays.arguments import Tokens
    from env_client.training_arrays.batch import Job
    from env_client.training_arrays.progress import OnProgress
    from env_client.training_arrays.reference import Reference

RELEASE_SECONDS: Final = 10.0

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")


class SyncArrayClient:
    """Fetches training arrays straight from the workers that keep them. Use it in a `with` block.

    May be used from several threads, but of one process: make it after a fork. It has one connection for each
    worker. Ctrl-C ends a fetch at once.

    A *reference* is an object of the list in `trace.info_json["training_arrays"]`, which
    `array_references(trace)` reads, or the JSON text of one.

    Args:
        hosts: "HOST" or "HOST:PORT" of the workers that may be called. A reference is an address that a
            worker wrote: one that is not on the list is refused before anything is sent. None: all may be.
        credentials: of TLS channels, and what calls carry; they need `hosts`. None: in the clear.
        concurrency: how many fetches of `fetch_many` are under way at once, at most.
        lost_seconds: how long a worker that cannot be reached is tried again. One that could not be reached
            so long is remembered: for a minute, or until it answers, each further call for its arrays makes
            one try of 2 s at most.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fetch(
        self,
        reference: Reference,
        fields: Collection[str] | None = None,
        tokens: slice | None = None,
        *,
        out: Mapping[str, NDArray[Any]] | None = None,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The arrays of one branch, or of a range of its tokens, by name.

        "routed_experts" uint8 or uint16 `[tokens, layers, top_k]`; "sampling_mask.ids" int32 `[ids]`,
        "sampling_mask.counts" int32 `[sampled tokens]`; "top_logprobs.ids" int32 `[ids]`,
        "top_logprobs.logprobs" float32 `[ids]`, "top_logprobs.counts" int32 `[sampled tokens]`. Of a range,
        the counts are those of its sampled tokens, the ids and logprobs theirs. All are in C order and
        writable, as `torch.from_numpy` wants them; what is written to them nobody else sees. A large array
        may be the worker's memory, mapped, which it keeps for as long as it lives, also after a release.

        Args:
            reference: of the branch.
            fields: names such as "routed_experts"; None: all that are complete.
            tokens: which of the branch's tokens, as `slice(start, end)`; None: all.
            out: arrays to read into, by name, of the right dtype and shape, in C order; those of other names
                are made. After an error their contents are anything.
            on_progress: gets the bytes that have come, and those in all: at most every 50 ms, and at the end.
                It is called in this thread; what it raises ends the fetch. It must return soon: a worker ends
                a fetch that takes nothing for 60 s.
            timeout: seconds that it may take; None: no limit.

        Raises:
            InvalidRequestError: an argument is malformed, or the host is not on the list; nothing was sent.
            ArraysIncompleteError: a field has a hole; metadata has "field" and "hole".
            TokenRangeError: the range does not lie within the branch.
            ArraysNotFoundError: they were released or discarded.
            ArraysLostError: another instance answers, or the worker could not be reached for `lost_seconds`
                (and 5 s more for a host that does not answer at all). A worker that was stopped or cut off
                without a word is first noticed after 20 s. A fetch that is cut off begins again, and so do
                these seconds where it came further than before, ten times at most.
            QueueFullError: the worker serves as many fetches as it can, and still did after `lost_seconds`;
                with a timeout it is waited for until then.
            FetchDeadlineError: it was not done in `timeout` seconds, or it had begun and brought nothing more
                for 60 s, or had not begun after 600 s, in which the worker may have it wait for its turn.
            ArrayProtocolError, ArraysCorruptError: what came is not what was sent or said.
            FetchCancelledError: the client was closed meanwhile.
        """
        return self._core.run(self._core.fetch_job(reference, fields, tokens, out, on_progress), timeout)

    @overload
    def fetch_many(
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
    def fetch_many(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None = None,
        tokens: Tokens = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        return_exceptions: bool,
    ) -> list[dict[str, NDArray[Any]] | EnvError]: ...

    def fetch_many(
        self,
        references: Iterable[Reference],
        fields: Collection[str] | None = None,
        tokens: Tokens = None,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """As `fetch`, for many references, in their order.

        Args:
            references: of the branches.
            fields: of each.
            tokens: of each the same `slice(start, end)`, or a list with one for each (None: all of it).
            on_progress: gets the bytes of all together; in threads of the client, one at a time.
            timeout: seconds that all may take together, also those in which other calls have the threads.
            return_exceptions: as of `asyncio.gather`: the result of one that failed is its `EnvError`, and
                the others go on. Else the first error ends the others and is raised.

        Raises:
            EnvError: as `fetch`.
        """
        jobs = self._core.fetch_jobs(references, fields, tokens, on_progress, collects=return_exceptions)
        return self._together(jobs, timeout, collects=return_exceptions)

    def release(self, *references: Reference, timeout: float = RELEASE_SECONDS) -> int:
        """Free arrays, with one call for each worker and 100,000 references, all at once.

        What was freed before counts nothing and is no error. Every worker is asked, whatever others answer.

        Returns:
            How many were freed now. Of a worker that is gone nothing is left to free: it counts 0. It is gone
            where another instance answers, or where nothing listens any more: the connection was refused for
            3 s (or `lost_seconds`, or `timeout`, if that is less).

        Raises:
            InvalidRequestError: a reference is malformed, or its host is not on the list; nothing was sent.
            UnavailableError: workers could not be reached for `lost_seconds` or `timeout`, and may still be
                there: what they hold stays held. metadata has their "addresses", and how many references the
                others have "released". Repeat it.
            FetchDeadlineError: the same, of workers that are there and did not answer in time.
            EnvError: a worker refused.
        """
        return self._core.run(self._core.checked_release_job(references), timeout)

    def release_owner(self, address: str, owner: str, *, timeout: float = RELEASE_SECONDS) -> int:
        """Free all arrays at one worker whose runs named this owner, for a trainer that has lost its list.

        Args:
            address: "HOST:PORT" of the worker.
            owner: as it was given to the runs.

        Returns:
            How many were freed now.

        Raises:
            UnavailableError: the worker could not be reached for `lost_seconds` or `timeout`.
            EnvError: it refused; with the code UNIMPLEMENTED it keeps no arrays.
        """
        return self._core.run(self._core.release_owner_job(address, owner), timeout)

    @contextmanager
    def releasing(self, references: Iterable[Reference]) -> Iterator[list[Reference]]:
        """Release references at the end of a `with` block, also when it raises; in 10 s at most.

        If the block raises, that is what is raised, and a release that failed too is only logged. Else a
        release that fails raises, as `release` does.

        Raises:
            InvalidRequestError: a reference is malformed; the block was not entered.
        """
        held = list_of(references, "releasing([reference])")
        release = self._core.release_job(self._core.groups(held))
        try:
            yield held
        except BaseException:
            try:
                self._core.run(release, RELEASE_SECONDS)
            except Exception as error:
                _LOG.warning("not all of %d references could be released: %s", len(held), error)
            raise
        self._core.run(release, RELEASE_SECONDS)

    def close(self) -> None:
        """Give up what other threads are fetching, and disconnect. Arrays that were fetched stay."""
        self._core.close()

    def _together(self, jobs: Sequence[Job[_T]], timeout: float | None, *, collects: bool) -> list[Any]:
        batch = self._core.start(jobs, timeout, collects=collects)
        try:
            while not batch.ended.done() and (left := batch.bounds.seconds_left()) != 0.0:
                futures.wait([batch.ended], left)
        finally:
            # Jobs that no thread has begun are not waited for; those that were begun end soon now.
            batch.give_up()
            futures.wait([batch.ended])
        return batch.results()

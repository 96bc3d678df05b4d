"""An episode: the head and the traces, and the announcements that let another thread follow them."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from env_worker.domain.records import EpisodeError, check_type
from env_worker.domain.text import JsonObject, check_text
from env_worker.domain.trace import Trace
from env_worker.domain.weakly import weakly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


logger = logging.getLogger(__name__)

MAX_TRACE_ID_BYTES: Final = 128


class Episode:
    """What one run yields. Times are unix seconds.

    `touched` and `on_change` announce changes to one reader in another thread: a trace that changed is
    appended to `touched` once, then `on_change` is called, in the writer's thread. The reader takes them with
    `take_touched`.
    """

    def __init__(
        self,
        id: str,
        environment: str,
        task: JsonObject,
        request_id: str = "",
        owner: str = "",
        group_id: str = "",
        *,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.id = id
        self.environment = environment
        self.task = task
        self.request_id = request_id
        self.owner = owner
        self.group_id = group_id
        self.started_at = time.time()
        self.finished_at: float | None = None
        self.ok = True
        """False after an error of the episode, or when the environment said so."""
        self.traces: tuple[Trace, ...] = ()
        """In the order in which they were made; discarded ones are left out."""
        self.errors: tuple[EpisodeError, ...] = ()
        self.touched: deque[Trace] = deque()
        self.on_change = on_change
        self._minted: set[str] = set()

    def __repr__(self) -> str:
        return (
            f"Episode({self.id!r}, environment={self.environment!r}, ok={self.ok}, traces={len(self.traces)})"
        )

    def new_trace(
        self,
        agent: str = "agent",
        *,
        trainable: bool = True,
        model: str = "",
        trace_id: str | None = None,
        started_at: float | None = None,
    ) -> Trace:
        """Open a trace. Without `trace_id` it is `trace-0`, `trace-1`, ...; no id is ever used twice.
        `started_at` is now unless given.

        ValueError if `trace_id` is empty, longer than 128 bytes in UTF-8, or was used before, also by a
        discarded trace.
        """
        if trace_id is None:
            trace_id = self._next_trace_id()
        check_text(trace_id, "trace_id")
        if (size := len(trace_id.encode())) > MAX_TRACE_ID_BYTES:
            raise ValueError(
                f"trace_id {trace_id[:16]!r}... has {size} bytes, the limit is {MAX_TRACE_ID_BYTES}; "
                "use a shorter one"
            )
        if not trace_id or trace_id in self._minted:
            raise ValueError(
                f"trace_id {trace_id!r} is empty or was used before in episode {self.id!r}; "
                "choose another, or leave it out"
            )
        trace = Trace(trace_id, agent, trainable, model, on_touch=weakly(Episode._announce, self))
        if started_at is not None:
            trace.started_at = started_at
        self._minted.add(trace_id)
        self.traces = (*self.traces, trace)
        trace.touch()
        return trace

    def _next_trace_id(self) -> str:
        number = len(self._minted)
        while (trace_id := f"trace-{number}") in self._minted:
            number += 1
        return trace_id

    def discard_trace(self, trace: Trace) -> None:
        """Give up a trace, for example of an attempt that is tried again: it leaves the episode and the
        stream.

        Writing to it afterwards has no effect on either. ValueError if it is of another episode.
        """
        if trace.discarded:
            return
        if trace not in self.traces:
            raise ValueError(
                f"trace {trace.id!r} is not one of episode {self.id!r}; discard it where it was made"
            )
        self.traces = tuple(other for other in self.traces if other is not trace)
        trace.discard()

    def add_error(self, error: EpisodeError) -> None:
        """Record an error of the episode as a whole; `ok` becomes False."""
        check_type(error, EpisodeError, "error")
        self.errors = (*self.errors, error)
        self.ok = False

    def finish(self) -> None:
        """Finish every trace that is not, and set `finished_at`. A second call changes nothing."""
        if self.finished_at is None:
            for trace in self.traces:
                trace.finish()
            self.finished_at = time.time()

    def without_nodes(self) -> Episode:
        """A copy with the head, the trace ids and their infos: what is left for a late discard."""
        rest = Episode(self.id, self.environment, self.task, self.request_id, self.owner, self.group_id)
        rest.started_at, rest.finished_at = self.started_at, self.finished_at
        rest.ok, rest.errors = self.ok, self.errors
        for trace in self.traces:
            left = rest.new_trace(
                trace.agent, trainable=trace.trainable, model=trace.model, trace_id=trace.id
            )
            left.started_at, left.finished_at = trace.started_at, trace.finished_at
            left.info.adopt(trace.info)
        return rest

    def take_touched(self) -> Iterator[Trace]:
        """The traces that changed since they were last taken, each ready to be read, discarded ones included.

        For the one reader. Read a trace's `discarded` and `journal` after it was yielded, not before: only
        then is a change that comes meanwhile certain to be announced again.
        """
        while self.touched:
            trace = self.touched.popleft()
            trace.dirty = False
            yield trace

    @property
    def reward(self) -> float | None:
        """The sum of the traces' rewards; None if no trace has one."""
        rewards = [reward for trace in self.traces if (reward := trace.reward) is not None]
        return sum(rewards) if rewards else None

    def drop_arrays(self) -> None:
        """Forget the training arrays of every trace."""
        for trace in self.traces:
            trace.drop_arrays()

    @property
    def array_bytes(self) -> int:
        """Bytes of the training arrays that the traces hold."""
        return sum(trace.array_bytes for trace in self.traces)

    def _announce(self, trace: Trace) -> None:
        self.touched.append(trace)
        if self.on_change is not None:
            try:
                self.on_change()
            except Exception:
                # The listener's fault must not become the environment's.
                logger.exception("on_change of episode %s raised; the change stays queued", self.id)

"""The traces of a verifiers episode, written into ours as they grow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain.text import clean_text
from env_worker.envs.verifiers.errors import ErrorRecords
from env_worker.envs.verifiers.trace_mirror import TraceMirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from env_worker.domain import Episode, Trace
    from env_worker.envs.verifiers.asked import Asked

logger = logging.getLogger(__name__)


class EpisodeMirror:
    """Follows one run of verifiers. For one event loop.

    What verifiers calls (`minted`, and what that has it call) only notes that something changed and never
    raises, since an exception there would fail the rollout; the changes are written when the loop comes
    round. Not everything is announced, so `finish` looks at everything once more.

    Args:
        episode: what is written.
        read: the traces of the attempt that runs now. verifiers puts another list in their place when it
            tries an episode again.
        asked: what the run asked of its engine.
    """

    def __init__(self, episode: Episode, read: Callable[[], Iterable[Any]], asked: Asked) -> None:
        self._episode: Final = episode
        self._read: Final = read
        self._asked: Final = asked
        self._loop: Final = asyncio.get_running_loop()
        self._mirrors: Final[dict[str, TraceMirror]] = {}
        self._errors: Final = ErrorRecords(asked.engine.redacted)
        self._scheduled = False
        self._over = False

    def minted(self, trace: Any) -> None:
        """verifiers has made a trace: follow it."""
        try:
            trace.watch(self._changed)
        except Exception:
            logger.exception(
                "episode %s: a trace cannot be followed; it is read at the end", self._episode.id
            )
        self._changed(trace)

    def finish(self, theirs: Any) -> None:
        """The episode is over: write all that has not been written, with its errors in their order, oldest
        first. Those of traces that failed are errors of the episode too, since that is where one looks.

        Raises what the first trace raised that cannot be read, after all else was written."""
        self._over = True
        failure = self._sync(list(theirs.traces), final=True)
        for error in theirs.errors:
            self._episode.add_error(self._errors.of(error))
        for trace in theirs.traces:
            if not trace.ok and (mirror := self._mirrors.get(trace.id)) is not None:
                for record in mirror.ours.errors:
                    self._episode.add_error(record)
        self._episode.ok = bool(theirs.ok)
        for ours in self._episode.traces:
            ours.finish()
        self._let_go()
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """The run was cancelled, or broke: write what there is. Of this verifiers says nothing."""
        self._over = True
        try:
            if (failure := self._sync(list(self._read()))) is not None:
                raise failure
            for mirror in self._mirrors.values():
                if not mirror.theirs.is_completed:
                    mirror.ours.set_stop("cancelled")
                mirror.ours.set_ok(False)
                mirror.ours.finish()
        except Exception:
            logger.exception("episode %s: what was left of it cannot be read", self._episode.id)
        self._let_go()

    def _let_go(self) -> None:
        """Leave no cycle of references, in which all arrays would stay until the garbage collector comes."""
        for mirror in self._mirrors.values():
            with contextlib.suppress(Exception):
                mirror.theirs.watch(None)
        self._mirrors.clear()

    def _changed(self, _trace: Any) -> None:
        if not (self._scheduled or self._over):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._over:
            return
        try:
            if (failure := self._sync(list(self._read()))) is not None:
                raise failure
        except Exception:
            logger.exception("episode %s: a change cannot be read; it is tried again", self._episode.id)

    def _sync(self, traces: list[Any], *, final: bool = False) -> Exception | None:
        """What the first trace raised that cannot be read: the others are written."""
        live = {trace.id for trace in traces}
        for trace_id in [trace_id for trace_id in self._mirrors if trace_id not in live]:
            # Of an attempt that is tried again, by an agent or as a whole.
            gone = self._mirrors.pop(trace_id)
            self._errors.keep(gone.theirs)
            self._episode.discard_trace(gone.ours)
        failure: Exception | None = None
        for trace in traces:
            try:
                self._mirror(trace).sync(final=final)
            except Exception as error:
                failure = failure or error
        return failure

    def _mirror(self, trace: Any) -> TraceMirror:
        if (found := self._mirrors.get(trace.id)) is None:
            found = self._mirrors[trace.id] = TraceMirror(
                self._opened(trace), trace, self._asked, self._errors
            )
        return found

    def _opened(self, trace: Any) -> Trace:
        config = trace.agent.config
        return self._episode.new_trace(
            clean_text(trace.agent.name),
            trainable=bool(trace.agent.trainable),
            model=clean_text(getattr(config, "model", None) or self._asked.engine.model),
            trace_id=trace.id,
            started_at=trace.timing.start,
        )

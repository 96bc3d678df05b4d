"""Errors of verifiers as ours, in their phase. Duck-typed: the package is not imported."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import EpisodeError

if TYPE_CHECKING:
    from collections.abc import Callable

_HARNESS: Final = "HarnessError"
_HARNESS_STOP: Final = "harness_error"
"""The stop condition of a trace that such an error has ended."""
_PHASES: Final = {
    "ProviderError": "model",
    "ToolsetError": "tool",
    _HARNESS: "environment",
    "SandboxError": "environment",
    "TaskError": "environment",
    "EnvError": "environment",
    "InterceptionError": "environment",
    "TunnelError": "environment",
    "CancelledError": "environment",
}
"""Where what verifiers names so happened. It names all that is not the model's: a hook of the task that
failed in a call, a call that the harness has left."""


def call_error(theirs: Any, occurred_at: float, hide: Callable[[str], str] = str) -> EpisodeError:
    """The error of a model call. What verifiers has no name for is what its client made of the engine's
    answer, or the library that it asks with."""
    return _error(theirs, _call_phase(theirs), occurred_at, hide)


class ErrorRecords:
    """Those of one episode's traces, and its own. Each is made once, when the trace that it has ended is
    looked at: verifiers hands it on to the trace of the next attempt, and to the episode, where nothing tells
    any more which call it followed.

    Args:
        hide: what is done to their texts, which may repeat what must not be.
    """

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        self._hide: Final = hide
        self._made: Final[dict[int, tuple[Any, EpisodeError]]] = {}
        """By the id of verifiers' object, with that: so no other gets its id."""

    def of(self, theirs: Any, trace: Any = None) -> EpisodeError:
        """That of `theirs`, with the time when it was first seen. `trace` is verifiers' trace that has it."""
        if (made := self._made.get(id(theirs))) is None:
            record = _error(theirs, _phase(theirs, trace), time.time(), self._hide)
            made = self._made[id(theirs)] = (theirs, record)
        return made[1]

    def keep(self, trace: Any) -> None:
        """Make those of a trace that is discarded: they may turn up elsewhere."""
        for theirs in trace.errors:
            self.of(theirs, trace)


def _phase(theirs: Any, trace: Any) -> str:
    """A harness that ends because its model call failed says no more than that it has ended, so there the
    call's own record tells. verifiers does the same with those failures that it has a name for."""
    if (
        theirs.type == _HARNESS
        and trace is not None
        and trace.stop_condition == _HARNESS_STOP
        and trace.calls
        and (failed := trace.calls[-1].error) is not None
    ):
        return _call_phase(failed)
    return _PHASES.get(theirs.type, "environment")


def _call_phase(theirs: Any) -> str:
    return _PHASES.get(theirs.type, "model")


def _error(theirs: Any, phase: str, occurred_at: float, hide: Callable[[str], str]) -> EpisodeError:
    text = theirs.message or ""
    status = theirs.status_code
    if status is not None and str(status) not in text:
        text = f"{text} (status {status})".lstrip()
    return EpisodeError(theirs.type, hide(text), phase, hide(theirs.traceback or ""), occurred_at)

"""How a local worker's process ended."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from env_broker.status import masked

if TYPE_CHECKING:
    from env_broker.log_tail import LogTail

_REPORTED_LINES: Final = 10
_REPORTED_CHARACTERS: Final = 800


class Ending(NamedTuple):
    """One end."""

    instance: str
    """As which the process had registered; empty if it never had."""
    code: int
    """Its exit code; negative: the signal that killed it."""
    how: str
    """For people, e.g. "worker 0 was killed by SIGKILL after 6.8 s"."""
    lines: str
    """What it logged last."""

    @property
    def words(self) -> str:
        """For people: how, and its last lines."""
        return "; ".join(part for part in (self.how, self.lines) if part)

    @classmethod
    def of(cls, slot: int, instance: str, code: int, seconds: float, why: str, tail: LogTail) -> Self:
        """That of a process which lived for `seconds`; `why` the broker killed it, or empty."""
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        before = "" if instance else " before it registered"
        because = f" by its broker, because {why}" if why else ""
        # Its environments' words, which go to callers of other runs too.
        lines = masked(" | ".join(tail.last(_REPORTED_LINES)))[-_REPORTED_CHARACTERS:]
        said = f"its last lines: {lines}" if lines else "it logged nothing"
        return cls(instance, code, f"worker {slot} {how} after {seconds:.1f} s{before}{because}", said)

    @classmethod
    def unstarted(cls, slot: int, error: Exception) -> Self:
        """That of a process which could not be started."""
        return cls("", 1, f"worker {slot} could not be started: {error}", "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"

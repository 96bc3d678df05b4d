"""Counting the outcomes of many runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from env_client.arrays import episode_reward
from env_client.training_arrays.reference import INFO_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envtrio.v1.episode_pb2 import Episode, Trace

ARRAY_BYTES_KEY: Final = "training_array_bytes"
"""Where an EpisodeHook may leave the size of what it kept of a trace."""
INCOMPLETE_KEY: Final = "incomplete"
"""Where a worker says what an engine was asked for and did not give."""
UNKNOWN_KIND: Final = "(unknown)"
"""Of runs without an episode that named no environment."""
_MAX_SHOWN: Final = 300
"""Characters of a reason."""
_SIMULATED: Final = "simulated model (right at a seeded rate)"


@dataclass(slots=True)
class Group:
    """Counts of some of the outcomes."""

    outcomes: int = 0
    turns: int = 0
    judged: int = 0
    reward_sum: float = 0.0

    @property
    def mean_reward(self) -> float | None:
        """Over the episodes that have a reward. A failure without one is not among them."""
        return self.reward_sum / self.judged if self.judged else None

    def add(self, turns: int, reward: float | None) -> None:
        """Count one outcome."""
        self.outcomes += 1
        self.turns += turns
        if reward is not None:
            self.judged += 1
            self.reward_sum += reward

    def __add__(self, other: Group) -> Group:
        """Both together."""
        return Group(
            self.outcomes + other.outcomes,
            self.turns + other.turns,
            self.judged + other.judged,
            self.reward_sum + other.reward_sum,
        )


@dataclass(slots=True)
class Tally:
    """Counts of all outcomes so far, of `total` that were asked for."""

    total: int
    done: int = 0
    failed: int = 0
    exceptions: int = 0
    turns: int = 0
    received_bytes: int = 0
    array_bytes: float | None = None
    referring: int = 0
    """Episodes with references that hold training arrays, until somebody releases them."""
    incomplete: dict[str, int] = field(default_factory=dict)
    """In how many episodes a field that an engine was asked for is missing, by its name."""
    first_reasons: dict[str, str] = field(default_factory=dict)
    """By that name: why, in the first of them that says it."""
    simulated: bool = False
    by_outcome: dict[str, Group] = field(default_factory=dict)
    by_kind: dict[str, Group] = field(default_factory=dict)
    only_environment: str | None = None
    """What UNKNOWN_KIND is, where that is known by now."""
    first_messages: dict[str, str] = field(default_factory=dict)
    """By outcome other than "ok": what the first of them said."""

    def add_episode(self, kind: str, episode: Episode) -> None:
        """Count an episode; one with `ok` False is a failed one."""
        turns = sum(node.sampled for trace in episode.traces for node in trace.nodes)
        reward = episode_reward(episode)
        self.failed += not episode.head.ok
        self.turns += turns
        self.simulated |= any(call.simulated for trace in episode.traces for call in trace.calls)
        for trace in episode.traces:
            size = json.loads(trace.info_json.get(ARRAY_BYTES_KEY, "null"))
            if isinstance(size, int | float):
                self.array_bytes = (self.array_bytes or 0) + size
        self.referring += any(map(_refers, episode.traces))
        reasons: dict[str, str] = {}
        for name, reason in (each for trace in episode.traces for each in _incomplete(trace)):
            reasons[name] = reasons.get(name) or reason
        for name, reason in reasons.items():
            self.incomplete[name] = self.incomplete.get(name, 0) + 1
            if reason:
                self.first_reasons.setdefault(name, reason)
        if not episode.head.ok:
            errors = [*episode.head.errors, *(error for trace in episode.traces for error in trace.errors)]
            said = f"{errors[-1].type}: {errors[-1].message}" if errors else "no error was given"
            self.first_messages.setdefault("failed", said)
        self._count("ok" if episode.head.ok else "failed", kind, turns, reward)

    def add_exception(self, kind: str, error: Exception) -> None:
        """Count a run that could not be carried out."""
        self.exceptions += 1
        self.first_messages.setdefault(type(error).__name__, str(error))
        self._count(type(error).__name__, kind, 0, None)

    def summary(self) -> str:
        """A table for people, over several lines."""
        lines = [f"{self.done} of {self.total} runs have an outcome, {self.exceptions} of them an exception"]
        for title, groups in (("outcome", self.by_outcome), ("kind", self._named_kinds())):
            lines += ["", *_table(title, groups)]
        if self.first_messages:
            lines += ["", *(f"first {name}: {said}" for name, said in sorted(self.first_messages.items()))]
        lines += ["", f"received: {format_bytes(self.received_bytes)}"]
        if self.array_bytes is not None:
            lines.append(f"training arrays kept by the workers: {format_bytes(self.array_bytes)}")
        for name, count in sorted(self.incomplete.items()):
            reason = self.first_reasons.get(name, "info.incomplete says more")
            lines.append(f"incomplete: {name} in {count} of {self.done} outcomes: {reason}")
        if self.simulated:
            lines.append(f"answers by the {_SIMULATED}")
        return "\n".join(lines)

    def _named_kinds(self) -> dict[str, Group]:
        kinds: dict[str, Group] = {}
        for kind, group in self.by_kind.items():
            name = self.only_environment or kind if kind == UNKNOWN_KIND else kind
            kinds[name] = kinds.get(name, Group()) + group
        return kinds

    def _count(self, outcome: str, kind: str, turns: int, reward: float | None) -> None:
        self.done += 1
        self.by_outcome.setdefault(outcome, Group()).add(turns, reward)
        self.by_kind.setdefault(kind, Group()).add(turns, reward)


def _refers(trace: Trace) -> bool:
    """Whether one of its references holds something: that of a branch without a complete field does not."""
    said = json.loads(trace.info_json.get(INFO_KEY, "null"))
    listed = said if isinstance(said, list) else ()
    return any(isinstance(reference, dict) and bool(reference.get("arrays")) for reference in listed)


def _incomplete(trace: Trace) -> Iterable[tuple[str, str]]:
    """Names of what the engine was asked for and did not give, and why, if that is said."""
    said = json.loads(trace.info_json.get(INCOMPLETE_KEY, "null"))
    for name, entry in said.items() if isinstance(said, dict) else ():
        reason = entry.get("reason") if isinstance(entry, dict) else None
        yield _shown(name), _shown(reason) if isinstance(reason, str) else ""


def _shown(text: str) -> str:
    """As much of it as a line has room for, without what would move a terminal's cursor."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_SHOWN])
    return f"{shown}..." if len(text) > _MAX_SHOWN else shown


def format_bytes(count: float) -> str:
    """A byte count for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _table(title: str, groups: dict[str, Group]) -> Iterable[str]:
    rows = [(title, "episodes", "turns", "mean reward")]
    for name, group in sorted(groups.items()):
        mean = group.mean_reward
        rows.append((name, str(group.outcomes), str(group.turns), "-" if mean is None else f"{mean:.3f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in (1, 2, 3))]
        yield "  ".join(cells)

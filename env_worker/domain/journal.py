"""The journal of a trace: everything that streams, in the order in which it happened.

One thread writes a trace while another reads its journal. Entries are immutable, carry what they announce,
and are only ever appended, so a reader's place is one count, and any prefix is a consistent state of the
trace: an entry refers only to what earlier entries added. What cannot be said by appending (a removed key)
starts a new journal, of the next generation, whose entries rebuild the trace from nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from env_worker.domain.node import Node
    from env_worker.domain.records import Call, EpisodeError, Link, Pending, Reward


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """Node number `index`."""

    index: int
    node: Node


@dataclass(frozen=True, slots=True)
class CallAdded:
    """Call number `index`."""

    index: int
    call: Call


@dataclass(frozen=True, slots=True)
class ErrorAdded:
    """Error number `index`."""

    index: int
    error: EpisodeError


@dataclass(frozen=True, slots=True)
class LinkAdded:
    """Link number `index`."""

    index: int
    link: Link


@dataclass(frozen=True, slots=True)
class RewardSet:
    """The reward `name`, as a whole."""

    name: str
    reward: Reward


@dataclass(frozen=True, slots=True)
class MetricSet:
    """The metric `name`."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class InfoSet:
    """The info key `key`, as JSON text."""

    key: str
    json_text: str


@dataclass(frozen=True, slots=True)
class OkSet:
    """Whether the trace went well."""

    ok: bool


@dataclass(frozen=True, slots=True)
class StopSet:
    """Why the trace stopped."""

    condition: str


@dataclass(frozen=True, slots=True)
class ToolsSet:
    """The tools of the trace, as the JSON text of an array."""

    json_text: str


@dataclass(frozen=True, slots=True)
class PendingSet:
    """What the model is being asked; None: nothing any more."""

    pending: Pending | None


@dataclass(frozen=True, slots=True)
class Finished:
    """When the trace was finished, unix nanoseconds. At most once in a journal."""

    unix_ns: int


Change: TypeAlias = (
    NodeAdded
    | CallAdded
    | ErrorAdded
    | LinkAdded
    | RewardSet
    | MetricSet
    | InfoSet
    | OkSet
    | StopSet
    | ToolsSet
    | PendingSet
    | Finished
)


@dataclass(frozen=True, slots=True)
class Journal:
    """One generation of a trace's changes. Read `trace.journal` once, then use only that object.

    `entries` grows at its end while it is read; take `entries[position:]`, which is one atomic copy, and go
    on from `position + len(copy)` next time. When `generation` differs from the one read last, start again at
    0.
    """

    generation: int = 0
    entries: list[Change] = field(default_factory=list)

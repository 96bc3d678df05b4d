"""Which episodes' arrays are kept, by key and by owner: a table without I/O, clock and lock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.arrays.branch import BranchLayout
    from env_worker.arrays.budget import Medium
    from env_worker.arrays.segment import Segment


@dataclass(slots=True, eq=False)
class KeptEpisode:
    """What is held of one episode, from the start of its keep on. Times: seconds of the store's clock."""

    id: str
    owner: str
    kept_at: float
    renewed_at: float
    """When it was kept, or a fetch of it began or ended, whichever was last."""
    open_fetches: int = 0
    keys: set[str] = field(default_factory=set)
    """Of the branches that were not released."""
    traces: list[KeptTrace] = field(default_factory=list)
    """Those that have room in the budget: until their segment is gone."""
    kept: bool = False
    """Whether its keep has succeeded."""
    discarded: bool = False
    """Whether it was discarded before that."""


@dataclass(slots=True, eq=False)
class KeptTrace:
    """One trace: room in the budget, and a segment in it that its branches share."""

    episode: KeptEpisode
    medium: Medium
    size: int
    """Bytes of room."""
    segment: Segment = field(init=False)
    """Set when it was written."""
    keys: set[str] = field(default_factory=set)
    """Of the branches that were not released: the table holds the segment while there are some."""


class KeptBranch(NamedTuple):
    """One branch, which a key names."""

    trace: KeptTrace
    layout: BranchLayout


class ArrayTable:
    """Episodes, their keys, and their owners. What it removes are segments that the caller then lets go of.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self.episodes: Final[dict[str, KeptEpisode]] = {}
        """By id, oldest first. One that was released stays until its segments are gone."""
        self._branches: Final[dict[str, KeptBranch]] = {}
        self._owned: Final[dict[str, set[KeptEpisode]]] = {}

    def begin(self, episode_id: str, owner: str, now: float) -> KeptEpisode:
        """A keep begins. ValueError if the episode is held already."""
        if episode_id in self.episodes:
            raise ValueError(
                f"the training arrays of episode {episode_id[:8]} are held already; an episode is kept once"
            )
        episode = self.episodes[episode_id] = KeptEpisode(episode_id, owner, now, now)
        return episode

    def kept(self, episode: KeptEpisode, branches: Mapping[str, KeptBranch]) -> None:
        """The keep has succeeded: from now on its branches are found by their keys."""
        episode.kept = True
        episode.keys.update(branches)
        self._branches.update(branches)
        if episode.keys:
            self._owned.setdefault(episode.owner, set()).add(episode)
        self._leave(episode)

    def failed(self, episode: KeptEpisode) -> None:
        """The keep has failed, and its room was given back."""
        episode.traces.clear()
        self._leave(episode)

    def find(self, key: str) -> KeptBranch | None:
        """The branch of that key."""
        return self._branches.get(key)

    def release(self, key: str) -> KeptTrace | None:
        """Remove one branch; its trace. None if there is no such key."""
        if (branch := self._branches.pop(key, None)) is None:
            return None
        trace = branch.trace
        trace.keys.discard(key)
        trace.episode.keys.discard(key)
        if not trace.episode.keys:
            self._disown(trace.episode)
        return trace

    def owned(self, owner: str) -> list[str]:
        """The keys of all branches of an owner."""
        return [key for episode in self._owned.get(owner, ()) for key in episode.keys]

    def remove(self, episode: KeptEpisode) -> list[KeptTrace]:
        """Remove all branches of an episode; its traces that the table held until now."""
        if not episode.kept:
            episode.discarded = True
            return []
        for key in episode.keys:
            del self._branches[key]
        held = [trace for trace in episode.traces if trace.keys]
        for trace in held:
            trace.keys.clear()
        episode.keys.clear()
        self._disown(episode)
        return held

    def overdue(self, before: float) -> list[KeptEpisode]:
        """Episodes that nobody fetches, nor has since `before`, and that hold something."""
        return [
            episode
            for episode in self.episodes.values()
            if episode.kept and episode.keys and not episode.open_fetches and episode.renewed_at <= before
        ]

    def gone(self, trace: KeptTrace) -> None:
        """A trace's segment is gone, and its room with it."""
        trace.episode.traces.remove(trace)
        self._leave(trace.episode)

    def _leave(self, episode: KeptEpisode) -> None:
        if not episode.traces and self.episodes.get(episode.id) is episode:
            del self.episodes[episode.id]

    def _disown(self, episode: KeptEpisode) -> None:
        if (owned := self._owned.get(episode.owner)) is not None:
            owned.discard(episode)
            if not owned:
                del self._owned[episode.owner]

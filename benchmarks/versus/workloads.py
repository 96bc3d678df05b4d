"""What is played, as a table. The standard library only: both drivers read it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

OURS: Final = "ours"
FETCHED: Final = "ours, fetched"
PEER: Final = "peer"

CEILING: Final = "ceiling"
"""The driver that plays our environment with no pool. What it plays of it, least first; see `ceiling`."""
ALONE: Final = "environment alone"
TRACED: Final = "with its trace"
ENCODED: Final = "trace encoded"
OVERWRITTEN: Final = "arrays written over others"
WRITTEN: Final = "arrays written to new memory"

SETTLED: Final = 4
"""Turns of the peer's loop from `notify` to a delta that has left: a flush begins, its task runs, it is
diffed and sent."""
PACED_SECONDS: Final = 0.150
"""What a turn of the paced workloads waits."""
_QUICK: Final = 8
"""By how much a try is smaller."""
_SHORT: Final = 2
"""By how much a round with no pool is."""
_LONG: Final = 2
"""By how much a round of the environment alone is longer: it plays many times as many in a second, and how
quiet the machine was is known to 10 ms."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An episode of `turns` times `tokens`: half of a turn's are a user's or a tool's, half are sampled.

    `layers` and `top_k` of a routing array uint8 `[tokens, layers, top_k]`, or 0: none. `turn_seconds` is
    what a turn waits. `yields` is how often the environment gives way to its event loop after a turn, before
    it waits: `SETTLED`, or 0 and the next turn comes at once.
    """

    turns: int
    tokens: int
    layers: int = 0
    top_k: int = 0
    turn_seconds: float = 0.0
    yields: int = SETTLED

    @property
    def sampled(self) -> int:
        """Tokens of a turn that are sampled."""
        return self.tokens - self.tokens // 2

    @property
    def array_bytes(self) -> int:
        """Of an episode's routing."""
        return self.turns * self.tokens * self.layers * self.top_k

    @property
    def least_seconds(self) -> float:
        """What an episode takes at least."""
        return self.turns * self.turn_seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """Episodes of one shape, `concurrency` at once; how many in a round of each side.

    The sides need not have as many: rates are compared, and a round of either is to take some seconds. With
    `cancels`, half of the runs are cancelled, each at a random moment of the time that it takes at least.
    """

    name: str
    shape: Shape
    concurrency: int
    ours: int
    peer: int
    cancels: bool = False

    @property
    def keeps(self) -> bool:
        """Whether there are arrays to keep, which are played with and without fetching them."""
        return self.shape.array_bytes > 0

    @property
    def sides(self) -> tuple[str, ...]:
        """In the order of an even round."""
        return (OURS, FETCHED, PEER) if self.keeps else (OURS, PEER)

    @property
    def ceilings(self) -> tuple[str, ...]:
        """What is played with no pool, least first; nothing where turns wait: that load sets the rate."""
        if self.shape.turn_seconds:
            return ()
        return (ALONE, TRACED, *((OVERWRITTEN, WRITTEN) if self.keeps else (ENCODED,)))

    def episodes(self, side: str) -> int:
        """How many that side plays in a round, which with no pool takes a second or so."""
        if side == ALONE:
            return self.ours * _LONG
        if side in self.ceilings:
            return max(self.ours // _SHORT, 1)
        return self.peer if side == PEER else self.ours

    @property
    def quick(self) -> Workload:
        """The same with few episodes, for a try."""
        least = self.concurrency
        return replace(self, ours=max(self.ours // _QUICK, least), peer=max(self.peer // _QUICK, least))

    def fitting(self, available_bytes: int) -> Workload:
        """The same with no more episodes of ours than the memory has room for, as it keeps all of a round."""
        if not self.keeps:
            return self
        room = int(available_bytes * 0.4) // self.shape.array_bytes - self.concurrency
        return replace(self, ours=max(min(self.ours, room), 1))

    def __str__(self) -> str:
        shape = self.shape
        said = f"{shape.turns} turns x {shape.tokens:,} tokens"
        if self.keeps:
            said += f", routing {shape.layers} x {shape.top_k} uint8"
        if not shape.yields:
            said += ", never giving way between turns"
        if shape.turn_seconds:
            said += f", {shape.turn_seconds * 1e3:g} ms a turn"
        return f"{said}; {self.concurrency} at once" + ("; half of them cancelled" if self.cancels else "")


_SMALL: Final = Shape(10, 200)
_ROUTED: Final = Shape(20, 1500, layers=48, top_k=8)
_PACED: Final = replace(_SMALL, turn_seconds=PACED_SECONDS)

WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("small", _SMALL, 64, ours=3072, peer=384),
        Workload("small-joined", replace(_SMALL, yields=0), 64, ours=3072, peer=1024),
        Workload("chatty", Shape(100, 50), 64, ours=768, peer=64),
        Workload("r3-16", _ROUTED, 16, ours=256, peer=48),
        Workload("r3-64", _ROUTED, 64, ours=256, peer=64),
        Workload("paced-64", _PACED, 64, ours=384, peer=384),
        Workload("paced-256", _PACED, 256, ours=1024, peer=1024),
        Workload("churn", replace(_SMALL, turn_seconds=0.020), 64, ours=768, peer=768, cancels=True),
    )
}

"""Which faults come when: a pure function of the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

LEASE_SECONDS: Final = 1.0
WINDOW_SECONDS: Final = 4.0
HEAL_SECONDS: Final = 2.5
"""From the end of one fault of the broker to the next one's beginning."""

KINDS: Final = {
    "worker SIGKILL": 3,
    "worker SIGSTOP": 2,
    "worker SIGSTOP past the lease": 3,
    "worker SIGSTOP past the window": 1,
    "worker SIGTERM": 2,
    "broker SIGKILL": 2,
    "broker SIGSTOP": 1,
    "broker SIGSTOP past the leases": 1,
    "client SIGKILL": 3,
    "client SIGSTOP": 2,
    "foreign cancels": 2,
    "malformed calls": 2,
    "oversized calls": 1,
}
"""With their weights."""
_SECONDS: Final = {
    "worker SIGSTOP": (0.1, 0.6),
    "worker SIGSTOP past the lease": (1.3, 2.5),
    "worker SIGSTOP past the window": (WINDOW_SECONDS + 0.5, WINDOW_SECONDS + 2.0),
    "broker SIGKILL": (0.0, 0.8),
    "broker SIGSTOP": (0.1, 0.6),
    "broker SIGSTOP past the leases": (1.3, 2.5),
    "client SIGSTOP": (0.2, 3.0),
}
"""Shortest and longest, of those that last; of a broker that was killed, the outage."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: when it comes, in seconds from the start; a number that chooses its target among those that
    there are then; and how long it lasts."""

    at: float
    kind: str
    target: int
    seconds: float

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:8.2f} s  {self.kind}{lasts} (target {self.target})"


def faults(seed: int, seconds: float) -> list[Fault]:
    """The same for the same arguments, and for a longer time the same in the beginning."""
    dice = random.Random(seed)
    plan: list[Fault] = []
    at, healed = 1.0, 0.0
    while True:
        at += dice.expovariate(1 / 0.8)
        (kind,) = dice.choices(list(KINDS), weights=list(KINDS.values()))
        target, low_high = dice.randrange(10**6), _SECONDS.get(kind, (0.0, 0.0))
        lasts = round(dice.uniform(*low_high), 2)
        if kind.startswith("broker"):
            at = max(at, healed)
            healed = at + lasts + HEAL_SECONDS
        if at >= seconds:
            return plan
        plan.append(Fault(round(at, 2), kind, target, lasts))

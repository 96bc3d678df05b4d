"""Which runs of a round are cancelled, and when; the same for both sides."""

from __future__ import annotations

import random


def cancel_plan(episodes: int, within: float, seed: int) -> list[float | None]:
    """For each run, after how many seconds it is cancelled, or None: half of them, at random."""
    rng = random.Random(seed)
    plan: list[float | None] = [
        rng.uniform(0.0, within) if number < episodes // 2 else None for number in range(episodes)
    ]
    rng.shuffle(plan)
    return plan

"""The work of a turn, the same for both sides: arrays cut from banks that are made once, and texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from benchmarks.versus.workloads import Shape

PROMPT: Final = "x" * 200
"""What a task says beside its number."""
MODEL: Final = "bench-model"
ENDPOINT: Final = "/chat/completions"

_BANK: Final = 1 << 20
_ROUTING_BANK: Final = 8192
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(slots=True)
class TurnArrays:
    """Of one turn, each a copy: int32 ids `[tokens]` of what was asked and of what was sampled, float32
    logprobs `[sampled]`, routing uint8 `[tokens, layers, top_k]` of both, or None."""

    asked_ids: NDArray[np.int32]
    sampled_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    asked_routing: NDArray[np.uint8] | None
    sampled_routing: NDArray[np.uint8] | None


class Banks:
    """All that is made before the first episode of a shape."""

    def __init__(self, shape: Shape) -> None:
        self.asked, self.sampled = shape.tokens - shape.sampled, shape.sampled
        self.asked_mask = np.zeros(self.asked, np.bool_)
        self.sampled_mask = np.ones(self.sampled, np.bool_)
        self.asked_text = _text("the quick brown fox jumps ", self.asked)
        self.sampled_text = _text("over the lazy dog and then ", self.sampled)
        self._ids = np.random.default_rng(2).integers(0, 150_000, _BANK, dtype=np.int32)
        self._logprobs = -np.random.default_rng(3).random(_BANK, dtype=np.float32)
        rows = (_ROUTING_BANK, shape.layers, shape.top_k)
        self._routing = (
            np.random.default_rng(1).integers(0, 128, rows, dtype=np.uint8) if shape.array_bytes else None
        )

    def turn(self, rng: random.Random) -> TurnArrays:
        """A turn's arrays."""
        routing = self._routing
        return TurnArrays(
            _cut(self._ids, self.asked, rng),
            _cut(self._ids, self.sampled, rng),
            _cut(self._logprobs, self.sampled, rng),
            None if routing is None else _cut(routing, self.asked, rng),
            None if routing is None else _cut(routing, self.sampled, rng),
        )


def _cut(bank: NDArray[Any], count: int, rng: random.Random) -> NDArray[Any]:
    start = rng.randrange(len(bank) - count)
    return bank[start : start + count].copy()


def _text(words: str, tokens: int) -> str:
    length = tokens * _CHARACTERS_PER_TOKEN
    return (words * (length // len(words) + 1))[:length]

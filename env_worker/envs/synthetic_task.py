"""What a synthetic episode is asked to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.task_fields import TaskFields

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TURNS: Final = 10_000
MAX_TOKENS_PER_TURN: Final = 1_000_000
MAX_TOTAL_TOKENS: Final = 100_000_000
MAX_LAYERS: Final = 512
MAX_TOP_K: Final = 64
MAX_TURN_SECONDS: Final = 3600.0
MAX_SEED: Final = 2**63 - 1
MAX_ARRAY_BYTES: Final = 8 * 2**30

MASK_WIDTH: Final = 8
"""Most ids in a sampled token's mask."""
HEAD_WIDTH: Final = 4
"""Ids in a sampled token's head."""

_KEYS: Final = (
    "turns",
    "tokens_per_turn",
    "layers",
    "top_k",
    "turn_seconds",
    "seed",
    "branches",
    "fail_at_turn",
)
# int32 ids and a count for the mask; int32 ids, float32 log-probabilities and a count for the head
_MASK_AND_HEAD_BYTES: Final = 4 * (MASK_WIDTH + 1) + 8 * HEAD_WIDTH + 4


@dataclass(frozen=True, slots=True)
class SyntheticTask:
    """A synthetic task, checked.

    `tokens_per_turn` counts a turn's two nodes together. `layers` 0 means no training arrays; otherwise a
    turn has all three. `branches` beyond 1 rewrite the history: each starts anew behind the first message,
    which all share. `fail_at_turn` counts from 0: so many turns are complete when it fails; equal to `turns`,
    it fails before the reward.
    """

    turns: int
    tokens_per_turn: int
    layers: int
    top_k: int
    turn_seconds: float
    seed: int
    branches: int
    fail_at_turn: int | None

    @classmethod
    def from_json(cls, task: Mapping[str, Any]) -> SyntheticTask:
        """Raises InvalidTaskError for what is unknown, of another type or out of range."""
        fields = TaskFields(task, _KEYS)
        turns = fields.integer("turns", 10, 1, MAX_TURNS)
        checked = cls(
            turns=turns,
            tokens_per_turn=fields.integer("tokens_per_turn", 200, 1, MAX_TOKENS_PER_TURN),
            layers=fields.integer("layers", 4, 0, MAX_LAYERS),
            top_k=fields.integer("top_k", 2, 1, MAX_TOP_K),
            turn_seconds=fields.number("turn_seconds", 0.0, 0.0, MAX_TURN_SECONDS),
            seed=fields.integer("seed", 0, 0, MAX_SEED),
            branches=fields.integer("branches", 1, 1, turns),
            fail_at_turn=None
            if fields.is_absent_or_null("fail_at_turn")
            else fields.integer("fail_at_turn", 0, 0, turns),
        )
        tokens = checked.turns * checked.tokens_per_turn
        if tokens > MAX_TOTAL_TOKENS:
            raise InvalidTaskError(
                f"turns x tokens_per_turn is {tokens}, but at most {MAX_TOTAL_TOKENS} tokens are allowed: "
                "lower task key 'turns' or 'tokens_per_turn'"
            )
        array_bytes = checked.turns * checked.turn_array_bytes
        if array_bytes > MAX_ARRAY_BYTES:
            raise InvalidTaskError(
                f"the training arrays would take {array_bytes} bytes, but at most {MAX_ARRAY_BYTES}: "
                "lower task key 'turns', 'tokens_per_turn', 'layers' or 'top_k'"
            )
        return checked

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a turn's first node; the rest are the answer's."""
        return self.tokens_per_turn // 4

    @property
    def turn_array_bytes(self) -> int:
        """An upper bound of one turn's training arrays, in bytes."""
        return self.tokens_per_turn * (self.layers * self.top_k + _MASK_AND_HEAD_BYTES) if self.layers else 0

    def starts_branch(self, turn: int) -> bool:
        """True for the first turn of every branch; the turns are dealt out to the branches evenly."""
        return turn == 0 or turn * self.branches // self.turns != (turn - 1) * self.branches // self.turns

    def uses_tool(self, turn: int) -> bool:
        """True when `turn` opens with a tool's result instead of a user's message."""
        return turn % 2 == 1 and turn < self.turns and not self.starts_branch(turn)

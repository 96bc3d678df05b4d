"""An environment that costs next to nothing: what is measured is what carries its episodes.

The arrays are cut from banks that are made once, the texts are made once for each shape.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import Call, Message
from env_worker.envs.task_fields import TaskFields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Trace
    from env_worker.envs.base import Context

MODEL: Final = "growth"
MAX_TURNS: Final = 100_000
MAX_TOKENS: Final = 16_384
MAX_TURN_SECONDS: Final = 600.0

_BANK: Final = 2**18
_IDS: Final = np.random.default_rng(1).integers(0, 150_000, _BANK, dtype=np.int32)
_LOGPROBS: Final = -np.random.default_rng(2).random(_BANK, dtype=np.float32)
_WORDS: Final = "the quick brown fox jumps over the lazy dog and then "
_CHARACTERS_PER_TOKEN: Final = 4
_STRIDE: Final = 7919
"""A prime: consecutive turns are cut from places far apart."""


@dataclass(frozen=True, slots=True)
class GrowthTask:
    """`turns` turns of `tokens` tokens each, half of them sampled; turn n is written `turn_seconds` x n after
    the start, however long the writing of the others took. 0: as fast as it goes.
    """

    turns: int
    tokens: int
    turn_seconds: float

    @classmethod
    def from_json(cls, task: Mapping[str, Any]) -> GrowthTask:
        """InvalidTaskError for what is unknown, of another type or out of range."""
        fields = TaskFields(task, ("turns", "tokens", "turn_seconds"))
        return cls(
            turns=fields.integer("turns", 10, 1, MAX_TURNS),
            tokens=fields.integer("tokens", 200, 2, MAX_TOKENS),
            turn_seconds=fields.number("turn_seconds", 0.0, 0.0, MAX_TURN_SECONDS),
        )


class GrowthEnvironment:
    """Plays `GrowthTask`s: per turn a user's or a tool's node, a sampled one and a call."""

    name = "growth"
    description = "episodes of any length, cut from banks, turn by turn on a schedule"

    def validate(self, task: Mapping[str, Any]) -> None:
        GrowthTask.from_json(task)

    async def run(self, context: Context) -> None:
        task = GrowthTask.from_json(context.task)
        trace = context.new_trace(model=MODEL)
        began = time.monotonic()
        place, last = hash(context.request_id) % _BANK, None
        for turn in range(task.turns):
            # A schedule rather than a pause: the load offered stays the same where the turns get dearer.
            due = began + (turn + 1) * task.turn_seconds
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            last = _turn(trace, task.tokens, turn, place, last)
            place = (place + _STRIDE) % _BANK
        trace.set_reward("growth", 1.0)
        trace.set_stop("completed")
        trace.finish()


def _turn(trace: Trace, tokens: int, turn: int, place: int, parent: int | None) -> int:
    sampled = tokens // 2
    start = place % (_BANK - tokens)
    middle, end = start + tokens - sampled, start + tokens
    asked = _asked(tokens - sampled) if turn == 0 else _looked_up(tokens - sampled)
    parent = trace.add_node(asked, _IDS[start:middle], parent=parent)
    node = trace.add_node(
        _answered(sampled), _IDS[middle:end], logprobs=_LOGPROBS[middle:end], parent=parent, sampled=True
    )
    trace.add_call(
        Call(
            node=node,
            model=MODEL,
            dialect=MODEL,
            prompt_tokens=(turn + 1) * tokens - sampled,
            completion_tokens=sampled,
            finish_reason="stop",
        )
    )
    return node


def _text(tokens: int) -> str:
    length = tokens * _CHARACTERS_PER_TOKEN
    return (_WORDS * (length // len(_WORDS) + 1))[:length]


# Messages are immutable, so all turns of a shape share them.
@lru_cache
def _asked(tokens: int) -> Message:
    return Message.user(_text(tokens))


@lru_cache
def _looked_up(tokens: int) -> Message:
    return Message.tool(_text(tokens), tool_call_id="lookup")


@lru_cache
def _answered(tokens: int) -> Message:
    return Message.assistant(_text(tokens))

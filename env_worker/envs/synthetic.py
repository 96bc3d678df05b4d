"""Episodes of any shape and size, made by arithmetic: for tests, demonstrations and load."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import Call, EpisodeError, Message, SamplingMask, ToolCall, TopLogprobs
from env_worker.envs.synthetic_task import HEAD_WIDTH, MASK_WIDTH, SyntheticTask
from env_worker.model import simulate_arrays
from env_worker.model.simulate_text import WORDS
from env_worker.model.simulated import SIMULATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from env_worker.domain import Trace
    from env_worker.envs.base import Context

VOCABULARY: Final = 32_768
EXPERTS: Final = 128

_CHARACTERS_PER_TOKEN: Final = 4
_INLINE_ARRAY_BYTES: Final = 4 * 2**20  # a turn with more is made in a thread, so that other runs go on
_CORPUS: Final = " ".join(WORDS[index] for index in np.random.default_rng(0).integers(0, len(WORDS), 4096))


class SyntheticFailureError(RuntimeError):
    """What `fail_at_turn` raises."""


class SyntheticEnvironment:
    """Plays `SyntheticTask`s. The same seed gives the same episode, arrays included, timestamps aside."""

    name = "synthetic"
    description = "episodes of any shape and size, with seeded tokens and training arrays"

    def validate(self, task: Mapping[str, Any]) -> None:
        SyntheticTask.from_json(task)

    async def run(self, context: Context) -> None:
        task = SyntheticTask.from_json(context.task)
        rng = np.random.default_rng(task.seed)
        trace = context.new_trace(model=SIMULATED)
        last: int | None = None
        held = 0  # tokens from the root to `last`
        for turn in range(task.turns):
            if turn and task.starts_branch(turn):
                last, held = 0, task.prompt_tokens
            last = await self._turn(trace, task, turn, rng, last, held)
            held += task.tokens_per_turn
        if task.fail_at_turn == task.turns:
            raise SyntheticFailureError("the task asked to fail after its last turn, before the reward")
        trace.set_metric("turns", float(task.turns))
        trace.set_metric("tokens", float(task.turns * task.tokens_per_turn))
        trace.set_reward("synthetic", float(rng.random()))
        trace.set_stop("completed")
        trace.finish()

    async def _turn(
        self,
        trace: Trace,
        task: SyntheticTask,
        turn: int,
        rng: np.random.Generator,
        parent: int | None,
        held: int,
    ) -> int:
        prompt_tokens = task.prompt_tokens
        prompt = _prompt(rng, task, turn)
        started_at, started = time.time(), time.perf_counter()
        trace.set_pending([prompt], parent)
        await asyncio.sleep(task.turn_seconds)
        if turn == task.fail_at_turn:
            error = SyntheticFailureError(f"the task asked to fail at turn {turn}")
            trace.clear_pending()
            trace.add_call(_call(None, started_at, started, 0, 0, "", EpisodeError.from_exception(error)))
            raise error

        if task.turn_array_bytes > _INLINE_ARRAY_BYTES:
            arrays = await asyncio.to_thread(_TurnArrays.generate, rng, task)
        else:
            arrays = _TurnArrays.generate(rng, task)
        parent = trace.add_node(
            prompt,
            arrays.ids[:prompt_tokens],
            mask=arrays.mask[:prompt_tokens],
            is_content=arrays.is_content[:prompt_tokens],
            parent=parent,
            routed_experts=None if arrays.routing is None else arrays.routing[:prompt_tokens],
        )
        answer = _answer(rng, task, turn)
        node = trace.add_node(
            answer,
            arrays.ids[prompt_tokens:],
            mask=arrays.mask[prompt_tokens:],
            is_content=arrays.is_content[prompt_tokens:],
            logprobs=arrays.logprobs,
            parent=parent,
            sampled=True,
            routed_experts=None if arrays.routing is None else arrays.routing[prompt_tokens:],
            sampling_mask=arrays.sampling_mask,
            top_logprobs=arrays.top_logprobs,
        )
        sampled = len(arrays.logprobs)
        asked = held + task.tokens_per_turn - sampled
        finish_reason = "tool_calls" if answer.tool_calls else "stop"
        trace.add_call(_call(node, started_at, started, asked, sampled, finish_reason, None))
        return node


@dataclass(frozen=True, slots=True)
class _TurnArrays:
    """Everything per token of one turn, the prompt's tokens first."""

    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    is_content: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    routing: NDArray[Any] | None
    sampling_mask: SamplingMask | None
    top_logprobs: TopLogprobs | None

    @classmethod
    def generate(cls, rng: np.random.Generator, task: SyntheticTask) -> _TurnArrays:
        ids = simulate_arrays.random_token_ids(rng, task.tokens_per_turn, VOCABULARY)
        # The template's header opens the answer, and is not sampled; an answer of one token has none.
        first_sampled = min(task.prompt_tokens + 1, task.tokens_per_turn - 1)
        mask = np.zeros(task.tokens_per_turn, dtype=np.bool_)
        mask[first_sampled:] = True
        is_content = np.ones(task.tokens_per_turn, dtype=np.bool_)
        is_content[task.prompt_tokens : first_sampled] = False
        sampled = ids[first_sampled:]
        logprobs = simulate_arrays.logprobs(rng, len(sampled))
        routing = sampling_mask = top_logprobs = None
        # The arrays draw from a generator of their own, so that what streams does not depend on them.
        array_seed = int(rng.integers(2**63))
        if task.layers:
            array_rng = np.random.default_rng(array_seed)
            routing = simulate_arrays.routed_experts(
                array_rng, task.tokens_per_turn, layers=task.layers, top_k=task.top_k, experts=EXPERTS
            )
            sampling_mask = simulate_arrays.sampling_mask(
                array_rng, sampled, width=MASK_WIDTH, vocabulary=VOCABULARY
            )
            top_logprobs = simulate_arrays.top_logprobs(
                array_rng, sampled, logprobs, width=HEAD_WIDTH, vocabulary=VOCABULARY
            )
        return cls(ids, mask, is_content, logprobs, routing, sampling_mask, top_logprobs)


def _prompt(rng: np.random.Generator, task: SyntheticTask, turn: int) -> Message:
    text = _text(rng, task.prompt_tokens)
    return Message.tool(text, tool_call_id=f"call-{turn}") if task.uses_tool(turn) else Message.user(text)


def _answer(rng: np.random.Generator, task: SyntheticTask, turn: int) -> Message:
    calls: tuple[ToolCall, ...] = ()
    if task.uses_tool(turn + 1):
        calls = (ToolCall(id=f"call-{turn + 1}", name="lookup", arguments=f'{{"turn": {turn + 1}}}'),)
    return Message.assistant(_text(rng, task.tokens_per_turn - task.prompt_tokens), tool_calls=calls)


def _text(rng: np.random.Generator, tokens: int) -> str:
    """Words for so many tokens: a slice of one text that goes round."""
    length = tokens * _CHARACTERS_PER_TOKEN
    start = int(rng.integers(len(_CORPUS)))
    if start + length <= len(_CORPUS):
        return _CORPUS[start : start + length]
    rounds = (start + length) // len(_CORPUS) + 1
    return (_CORPUS * rounds)[start : start + length]


def _call(
    node: int | None,
    started_at: float,
    started: float,
    prompt_tokens: int,
    completion_tokens: int,
    finish_reason: str,
    error: EpisodeError | None,
) -> Call:
    return Call(
        node=node,
        model=SIMULATED,
        dialect=SIMULATED,
        started_at=started_at,
        duration_seconds=time.perf_counter() - started,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        finish_reason=finish_reason,
        error=error,
        simulated=True,
    )

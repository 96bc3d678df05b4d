"""Our side's environment: `env-worker serve --env versus=benchmarks.versus.environment:environment`."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final

from benchmarks.versus.banks import ENDPOINT, MODEL, Banks
from benchmarks.versus.notes import ABORTED, BEGAN, ENDED, Notebook
from benchmarks.versus.workloads import Shape
from env_worker.domain import Call, Message

if TYPE_CHECKING:
    from env_worker.domain import Trace
    from env_worker.envs.base import Context

_SHAPE_KEYS: Final = ("turns", "tokens", "layers", "top_k", "turn_seconds", "yields")


class VersusEnvironment:
    """Plays tasks that have `number`, `prompt` and the fields of `Shape`: what the environment in `peer_path`
    does with the peer's classes, node for node and call for call."""

    name = "versus"

    def __init__(self) -> None:
        self._notebook = Notebook()
        self._banks: dict[Shape, Banks] = {}

    async def run(self, context: Context) -> None:
        number = int(context.task["number"])
        shape = Shape(*(context.task[key] for key in _SHAPE_KEYS))
        if (banks := self._banks.get(shape)) is None:
            banks = self._banks[shape] = Banks(shape)
        self._notebook.note(BEGAN, number)
        try:
            await _play(context.new_trace(model=MODEL), shape, banks)
        except asyncio.CancelledError:
            self._notebook.note(ABORTED, number)
            raise
        self._notebook.note(ENDED, number)


async def _play(trace: Trace, shape: Shape, banks: Banks) -> None:
    rng = random.Random()
    last: int | None = None
    held = 0  # tokens before this turn
    for turn in range(shape.turns):
        arrays = banks.turn(rng)
        if last is not None and arrays.asked_routing is not None:
            # What the next prefill does: the last sampled token's row was a placeholder.
            trace.nodes[last].repair_routing(shape.sampled - 1, arrays.asked_routing[0])
        text = banks.asked_text
        asked = trace.add_node(
            Message.tool(text, tool_call_id=f"call_{turn}") if turn else Message.user(text),
            arrays.asked_ids,
            mask=banks.asked_mask,
            parent=last,
            routed_experts=arrays.asked_routing,
        )
        last = trace.add_node(
            Message.assistant(banks.sampled_text),
            arrays.sampled_ids,
            mask=banks.sampled_mask,
            logprobs=arrays.logprobs,
            parent=asked,
            sampled=True,
            routed_experts=arrays.sampled_routing,
        )
        trace.add_call(
            Call(
                node=last,
                model=MODEL,
                endpoint=ENDPOINT,
                started_at=time.time() - 1.0,
                duration_seconds=1.0,
                prompt_tokens=held + banks.asked,
                completion_tokens=banks.sampled,
                finish_reason="tool_calls",
            )
        )
        held += shape.tokens
        await settle(shape.yields)
        if shape.turn_seconds:
            await asyncio.sleep(shape.turn_seconds)
    trace.set_reward("r", 1.0)
    trace.set_stop("done")
    trace.finish()


async def settle(yields: int) -> None:
    """Give way to the loop so often, the same on both sides: `SETTLED` is what a turn's delta needs to leave
    the peer by itself. Ours is sent by another thread's loop, which these do not wait for."""
    for _ in range(yields):
        await asyncio.sleep(0)


environment: Final = VersusEnvironment()

"""The peer's side: a taskset and an environment for verifiers, which do what ours does.

Alone in a folder of the peer's PYTHONPATH, as the peer finds plugins by the name of a top-level module. An
episode is a real one of the peer's: a Trace with MessageNodes and ModelCalls, and a `notify` after each
turn. The peer's own slots, delta streamer, server, broker and client carry it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from verifiers.v1.configs.agent import resolve_agent
from verifiers.v1.configs.taskset import TasksetConfig
from verifiers.v1.envs.single_agent import SingleAgentEnv
from verifiers.v1.episode import EnvInfo, Episode
from verifiers.v1.graph import MessageNode
from verifiers.v1.state import State
from verifiers.v1.task import Task, TaskData
from verifiers.v1.taskset import Taskset
from verifiers.v1.trace import AgentInfo, ModelCall, Reward, TimeSpan, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, ToolMessage, Usage, UserMessage

from benchmarks.versus.banks import ENDPOINT, PROMPT, Banks
from benchmarks.versus.notes import ABORTED, BEGAN, ENDED, Notebook
from benchmarks.versus.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.versus.workloads import Shape

__all__ = ["VersusEnv", "VersusTaskset"]

_WORKLOAD = WORKLOADS[os.environ["ENVTRIO_VERSUS_WORKLOAD"]]
_BANKS = Banks(_WORKLOAD.shape)
_NOTEBOOK = Notebook()
_NO_BOOLS = np.zeros(0, np.bool_)
_NO_FLOATS = np.zeros(0, np.float32)


class VersusTaskset(Taskset[Task, TasksetConfig]):  # type: ignore[misc]
    """One task; a request brings its own."""

    def load(self) -> Iterator[Task]:
        yield Task(TaskData(prompt=f"0 {PROMPT}"), self.config.task)


class VersusEnv(SingleAgentEnv):  # type: ignore[misc]
    """Plays tasks whose prompt begins with the run's number."""

    async def run_episode(
        self, task: Any, ctx: Any, *, on_trace: Any = None, on_discard: Any = None
    ) -> Episode:
        number = int(task.data.prompt.split()[0])
        episode = Episode(
            env=EnvInfo(id=self.config.env_id),
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        )
        agent = resolve_agent(
            self._agent_specs["agent"],
            model=ctx.model,
            client=ctx.client,
            sampling=ctx.sampling,
            harness=self._default_harness,
        )
        trace = Trace(task=episode.task, state=State(), agent=AgentInfo(config=agent))
        if on_trace is not None:
            on_trace(trace)
        _NOTEBOOK.note(BEGAN, number)
        try:
            await _play(trace, ctx.model, _WORKLOAD.shape, _BANKS)
        except asyncio.CancelledError:
            _NOTEBOOK.note(ABORTED, number)
            raise
        _NOTEBOOK.note(ENDED, number)
        episode.traces.append(trace)
        episode.ok = True
        return episode


async def _play(trace: Trace, model: str, shape: Shape, banks: Banks) -> None:
    rng = random.Random()
    last: int | None = None
    held = 0
    for turn in range(shape.turns):
        arrays = banks.turn(rng)
        if last is not None and arrays.asked_routing is not None:
            trace.nodes[last].routed_experts[-1] = arrays.asked_routing[0]
        text = banks.asked_text
        asked = ToolMessage(content=text, tool_call_id=f"call_{turn}") if turn else UserMessage(content=text)
        # model_construct with every field given: it inspects the signature of each default that it has to
        # make (0.35 ms a node), which is the environment's cost and not the serving's.
        trace.nodes.append(
            MessageNode.model_construct(
                parent=last,
                tools=[],
                message=asked,
                token_ids=arrays.asked_ids,
                mask=banks.asked_mask,
                is_content=_NO_BOOLS,
                routed_experts=arrays.asked_routing,
                logprobs=_NO_FLOATS,
                timestamp=time.time(),
                semantic_parents=[],
            )
        )
        trace.nodes.append(
            MessageNode.model_construct(
                parent=len(trace.nodes) - 1,
                tools=[],
                message=AssistantMessage(content=banks.sampled_text),
                sampled=True,
                token_ids=arrays.sampled_ids,
                mask=banks.sampled_mask,
                is_content=_NO_BOOLS,
                logprobs=arrays.logprobs,
                routed_experts=arrays.sampled_routing,
                timestamp=time.time(),
                semantic_parents=[],
            )
        )
        last = len(trace.nodes) - 1
        now = time.time()
        trace.calls.append(
            ModelCall(
                node=last,
                model=model,
                endpoint=ENDPOINT,
                finish_reason="tool_calls",
                usage=Usage(prompt_tokens=held + banks.asked, completion_tokens=banks.sampled),
                time=TimeSpan(start=now - 1.0, end=now),
            )
        )
        held += shape.tokens
        trace.notify()
        await _settle(shape.yields)
        if shape.turn_seconds:
            await asyncio.sleep(shape.turn_seconds)
    trace.rewards["r"] = Reward(score=1.0)
    trace.is_completed = True
    trace.ok = True
    trace.stop_condition = "done"
    trace.notify()


async def _settle(yields: int) -> None:
    for _ in range(yields):  # see workloads.SETTLED
        await asyncio.sleep(0)

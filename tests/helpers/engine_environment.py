"""An environment that talks to its run's model as its task says, with tools, for tests of engines.

Name it `engine=tests.helpers.engine_environment:EngineEnvironment`. A task is

    {"turns": [[message, ...], ...], "tools": [tool, ...], "fails": "tool" | "environment" | "",
     "forgives": false}

Each turn sends its messages behind the answer before it, and asks. They are OpenAI's dicts, or "results": one
tool message for each call of the answer before. When the last turn has its answer the trace has a reward,
unless the task says that a tool, or the environment, fails then. With "forgives" an engine that gives no
answer ends the episode well, without a reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from env_worker.domain import Message, ToolError
from env_worker.model.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from env_worker.envs.base import Context

REWARD = "finished"


class RuleBrokenError(RuntimeError):
    """What the environment raises of its own."""


class EngineEnvironment:
    """Obeys."""

    name = "engine"
    description = "talks to a model as its task says, for tests"

    async def run(self, context: Context) -> None:
        task = context.task
        trace = context.new_trace(model=context.model.name)
        tools = task.get("tools", ())
        parent, said = None, Message.assistant()
        for given in task["turns"]:
            messages = list(_messages(given, said))
            try:
                turn = await context.model.chat(
                    trace, messages, parent=parent, sampling=context.sampling, tools=tools
                )
            except EngineError:
                if not task.get("forgives"):
                    raise
                trace.set_stop("no answer")
                return
            parent, said = turn.node, turn.message
        if task.get("fails") == "tool":
            raise ToolError("the tool's service is down")
        if task.get("fails") == "environment":
            raise RuleBrokenError("the rules say something else")
        trace.set_reward(REWARD, 1.0)


def _messages(given: Sequence[Any], said: Message) -> Iterator[Message]:
    for message in given:
        if message == "results":
            for call in said.tool_calls:
                yield Message.tool(f"{call.name} has heard {call.arguments}", call.id)
        else:
            yield Message.from_openai(message)

"""An environment for worker processes that does what its task says, step by step, and records that it ran.

Name it `scripted=tests.helpers.scripted_environment:ScriptedEnvironment`. A task is {"script": [step, ...]}:

    ["trace"]                opens the next trace; the steps below are about the last one
    ["say", CHARACTERS]      one assistant node with a message of so many characters, and one token
    ["pending", TEXT]        previews a user's message
    ["info", CHARACTERS]     sets info["scripted"] to a text of so many characters
    ["wait", PATH]           waits at this `Gate`
    ["block", PATH]          the same, and blocks its thread meanwhile
    ["forever"]              waits until it is cancelled
    ["raise", TEXT]          raises
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from env_worker.domain import InvalidTaskError, Message
from tests.helpers.gate import pass_blocking, pass_gate
from tests.helpers.history import EnvironmentBegan, EnvironmentEnded
from tests.helpers.history_pipe import HistoryWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Trace
    from env_worker.envs.base import Context

STEPS = frozenset({"trace", "say", "pending", "info", "wait", "block", "forever", "raise"})


class ScriptedFailureError(RuntimeError):
    """What the step "raise" raises."""


class ScriptedEnvironment:
    """Plays scripts."""

    name = "scripted"
    description = "does what its task says, for tests"

    def __init__(self) -> None:
        self._writer = HistoryWriter()

    def validate(self, task: Mapping[str, Any]) -> None:
        script = task.get("script")
        if not isinstance(script, list) or any(step[0] not in STEPS for step in script):
            raise InvalidTaskError(
                f"task key 'script' must be a list of the steps {', '.join(sorted(STEPS))}"
            )

    async def run(self, context: Context) -> None:
        run = context.request_id
        self._writer.note(EnvironmentBegan, run, pid=os.getpid())
        how = "raised"
        try:
            for name, *arguments in context.task["script"]:
                await self._step(context, name, *arguments)
            how = "returned"
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            self._writer.note(EnvironmentEnded, run, how=how)

    async def _step(self, context: Context, name: str, argument: Any = None) -> None:
        if name == "trace":
            context.new_trace(model="simulated")
        elif name == "say":
            _say(context.episode.traces[-1], argument)
        elif name == "pending":
            trace = context.episode.traces[-1]
            trace.set_pending([Message.user(argument)], parent=len(trace.nodes) - 1 if trace.nodes else None)
        elif name == "info":
            context.episode.traces[-1].info["scripted"] = "i" * argument
        elif name == "wait":
            await pass_gate(argument)
        elif name == "block":
            pass_blocking(argument)
        elif name == "forever":
            await asyncio.Event().wait()
        else:
            raise ScriptedFailureError(argument)


def _say(trace: Trace, characters: int) -> None:
    parent = len(trace.nodes) - 1 if trace.nodes else None
    trace.add_node(
        Message.assistant("s" * characters), [7], mask=[True], logprobs=[-0.5], parent=parent, sampled=True
    )

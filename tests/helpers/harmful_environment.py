"""An environment that does to its process what its task says, for workers with `--isolate process`.

Name it `harmful=tests.helpers.harmful_environment:HarmfulEnvironment`. A task is {"do": [step, ...]}:

    ["everything"]        uses every method of trace, episode and context once at least
    ["trace"]             opens a trace with one node
    ["wait", PATH]        waits at this `Gate`
    ["hold"]              holds the interpreter: no other thread of its process goes on
    ["sleep", MARK]       waits until it is cancelled; then leaves its pid in the file MARK, in its finally
    ["stubborn"]          waits for ever, and swallows cancellation
    ["segfault"], ["exit", CODE], ["kill"]  end the process
    ["close"]             closes every file but the standard ones
    ["print", TEXT]       prints it
    ["pids"]              leaves its own pid, and that of a subprocess it started, in the trace's info
    ["terminate"]         sends itself SIGTERM and SIGINT, as whoever ends all processes of a service
    ["linger"]            leaves a thread behind for which its process would wait at its end
    ["fork"]              forks a child that writes into the trace and leaves
    ["raise", TEXT], ["invalid", TEXT]  raise
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker.domain import (
    Call,
    EpisodeError,
    InvalidTaskError,
    JsonPart,
    Link,
    Message,
    SamplingMask,
    TextPart,
    ToolCall,
    TopLogprobs,
    WeightVersionSpan,
)
from tests.helpers.gate import pass_gate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Trace
    from env_worker.envs.base import Context


class HarmfulFailureError(RuntimeError):
    """What the step "raise" raises."""


class HarmfulEnvironment:
    """Obeys."""

    name = "harmful"
    description = "does to its process what its task says, for tests"

    def validate(self, task: Mapping[str, Any]) -> None:
        if not isinstance(task.get("do"), list):
            raise InvalidTaskError("task key 'do' must be a list of steps")

    async def run(self, context: Context) -> None:
        for name, *arguments in context.task["do"]:
            await getattr(self, f"_{name}")(context, *arguments)

    async def _trace(self, context: Context) -> None:
        context.new_trace().add_node(Message.user("before"), [1])

    async def _wait(self, context: Context, path: str) -> None:
        await pass_gate(path)

    async def _hold(self, context: Context) -> None:
        ctypes.PyDLL(None).sleep(600)

    async def _sleep(self, context: Context, mark: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(Path(mark).write_text, str(os.getpid()))

    async def _stubborn(self, context: Context) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                print("not now")

    async def _segfault(self, context: Context) -> None:
        ctypes.string_at(0)

    async def _exit(self, context: Context, code: int) -> None:
        os._exit(code)

    async def _kill(self, context: Context) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def _close(self, context: Context) -> None:
        os.closerange(3, 1024)

    async def _print(self, context: Context, text: str) -> None:
        print(text)
        print("to stderr:", text, file=sys.stderr)

    async def _pids(self, context: Context) -> None:
        process = await asyncio.to_thread(subprocess.Popen, ["sleep", "600"])
        context.episode.traces[-1].info["pids"] = [os.getpid(), process.pid]

    async def _terminate(self, context: Context) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)

    async def _linger(self, context: Context) -> None:
        threading.Thread(target=threading.Event().wait).start()

    async def _fork(self, context: Context) -> None:
        if not (pid := os.fork()):
            context.episode.traces[-1].info["forked"] = True
            os._exit(0)
        await asyncio.to_thread(os.waitpid, pid, 0)

    async def _raise(self, context: Context, text: str) -> None:
        raise HarmfulFailureError(text)

    async def _invalid(self, context: Context, text: str) -> None:
        raise InvalidTaskError(text)

    async def _everything(self, context: Context) -> None:
        first = context.new_trace("solver", trainable=True, model=context.model.name)
        turn = await context.model.chat(
            first,
            [Message.user([TextPart("what?"), JsonPart('{"type":"file"}')])],
            sampling=context.sampling,
            tools=[{"type": "function", "function": {"name": "look"}}],
        )
        turn = await context.model.chat(first, [Message.user("and then?")], parent=turn.node)
        _write_all(first, turn.node)
        attempt = context.new_trace("judge", trainable=False, trace_id="judge-1")
        attempt.add_node(Message.user("a first attempt"), [1, 2])
        context.episode.discard_trace(attempt)
        attempt.add_node(Message.user("a straggler"))
        second = context.new_trace("judge", trainable=False)
        second.add_node(Message.user("a second"), np.arange(40_000))
        second.nodes[0].routed_experts = np.arange(40_000 * 4, dtype=np.uint16).reshape(40_000, 2, 2)
        second.add_link(Link(0, 1, "judges", first.id))
        second.set_pending([Message.user("left open")], 0)
        await asyncio.to_thread(second.set_metric, "from a thread", 1.0)
        print("this must not look like a frame:", "\x00\x01\xff" * 3)
        first.finish()
        context.episode.add_error(EpisodeError("Odd", "an error of the episode", occurred_at=1.0))
        context.episode.ok = True


def _write_all(trace: Trace, parent: int) -> None:
    call = ToolCall("call-1", "look", '{"at": "it"}')
    node = trace.add_node(
        Message.assistant("looking", reasoning="hm", tool_calls=[call]),
        [10, 11, 12],
        parent=parent,
        sampled=True,
        mask=[False, True, True],
        is_content=[False, True, True],
        logprobs=[-0.5, -0.25],
        created_at=5.0,
        tools_json='[{"type":"function"}]',
        routed_experts=np.ones((3, 2, 2), np.uint8),
        sampling_mask=SamplingMask(np.array([1, 2, 3]), np.array([1, 2])),
        top_logprobs=TopLogprobs(np.array([1, 2]), np.array([-1.0, -2.0]), np.array([1, 1])),
    )
    trace.repair_routing(node, 1, np.full((1, 2, 2), 300))
    trace.nodes[node].sampling_mask = None
    trace.set_pending([Message.tool("seen", "call-1")], node)
    trace.clear_pending()
    trace.add_call(
        Call(node, "m", "http://engine", "chat", 1.0, 0.5, 3, 2, 1, "stop",
             weight_versions=(WeightVersionSpan("v7", 0, 2),))
    )  # fmt: skip
    trace.add_call(Call(error=EpisodeError("Lost", "no answer", occurred_at=2.0), started_at=1.0, attempt=2))
    trace.add_link(Link(0, node, "quotes"))
    trace.add_error(EpisodeError("Late", "recovered", "tool", occurred_at=3.0))
    trace.rewrite_errors([EpisodeError("Early", "an attempt", occurred_at=1.0), *trace.errors])
    trace.set_reward("score", 0.5, 2.0)
    trace.set_reward("gone", None)
    trace.remove_reward("gone")
    trace.set_metric("steps", 3)
    trace.set_metric("gone", 1.0)
    trace.remove_metric("gone")
    trace.info["kept"] = {"a": [1, None, "ü"]}
    trace.info["gone"] = 1
    del trace.info["gone"]
    trace.set_tools('[{"type":"function","function":{"name":"look"}}]')
    trace.set_ok(False)
    trace.set_stop("max_turns")
    trace.add_node(Message.user("another branch"), [7], parent=0)

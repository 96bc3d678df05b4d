"""What is wrong is named, ends its own run and no other, and leaves nothing kept."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1.delta_pb2 import DeltaStream, RunReply, TraceDelta
from envtrio.v1.episode_pb2 import Episode, EpisodeHead, Trace, TraceHeader

from env_client import (
    AssemblyError,
    EnvError,
    EnvironmentNotFoundError,
    HookFailedError,
    InvalidRequestError,
    InvalidTaskError,
    MessageTooLargeError,
)
from tests.helpers.history import DiscardReturned, EnvironmentBegan, EnvironmentEnded, KeepBegan
from tests.helpers.scripted_worker import ScriptedWorker, Send
from tests.helpers.stub_client import MIB, new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.gate import Gate
    from tests.helpers.pools import Subject
    from tests.helpers.recorded_client import RecordedClient


@pytest.mark.parametrize(
    ("task", "arguments", "kind", "words"),
    [
        ([1, 2], {}, InvalidTaskError, ["task"]),
        ("text", {}, InvalidTaskError, ["task"]),
        ({"seed": math.nan}, {}, InvalidTaskError, ["task"]),
        ({"seed": {1, 2}}, {}, InvalidTaskError, ["task"]),
        ({"turns": -1}, {}, InvalidTaskError, ["turns", "-1", "10000"]),
        ({"tokens_per_turn": 10**9}, {}, InvalidTaskError, ["tokens_per_turn", "1000000000", "1000000"]),
        ({"trns": 3}, {}, InvalidTaskError, ["trns", "turns"]),
        ({"dataset": "chain_sun"}, {"env": "reasoning-gym"}, InvalidTaskError, ["chain_sun", "chain_sum"]),
        ({"dataset": "chain_sum", "index": -1}, {"env": "reasoning-gym"}, InvalidTaskError, ["index", "-1"]),
        ({}, {"env": "os:system"}, EnvironmentNotFoundError, ["os:system", "synthetic"]),
        ({}, {"sampling": {"temperature": -1.0}}, InvalidRequestError, ["temperature", "-1"]),
        ({}, {"owner": "o" * 300}, InvalidRequestError, ["owner", "256"]),
        ({"turns": 1}, {"group_id": "raise-in-keep"}, HookFailedError, ["keep"]),
    ],
)
async def test_what_is_wrong_is_named(
    recorded: RecordedClient,
    pool: Subject,
    task: Any,
    arguments: dict[str, Any],
    kind: type[EnvError],
    words: list[str],
) -> None:
    error = await recorded.run(task, **arguments)
    assert isinstance(error, kind), error
    for word in words:
        assert word in str(error)
    assert recorded.runs[0] not in str(error)  # a request_id is a capability
    if kind is not HookFailedError:
        assert not pool.pipe.history.of(recorded.runs[0], EnvironmentBegan, KeepBegan)


@pytest.mark.parametrize("request_id", ["", "A" * 32, "not an id"])
async def test_a_malformed_request_id_never_leaves(recorded: RecordedClient, request_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="32"):
        await recorded.client.run({}, request_id=request_id)
    with pytest.raises(InvalidRequestError, match="32"):
        await recorded.client.cancel(request_id)


async def test_a_message_beyond_the_limit_ends_its_own_run(
    recorded: RecordedClient, pool: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    waits = {"script": [["trace"], ["say", 1], ["wait", str(gate.path)], ["say", 1]]}
    other = asyncio.create_task(recorded.run(waits, env="scripted"))
    too_large = {"script": [["trace"], ["say", 64 * MIB]]}
    error = await recorded.run(too_large, env="scripted")
    assert isinstance(error, MessageTooLargeError)
    assert str(64 * MIB) in str(error)
    assert "nodes[0]" in str(error)
    error = await recorded.run({"turns": 1}, group_id=f"info={64 * MIB}")
    assert isinstance(error, MessageTooLargeError)
    await pool.pipe.seen(recorded.runs[-1], DiscardReturned)
    error = await recorded.run({"script": [["raise", "x" * 64 * MIB]]}, env="scripted")
    assert isinstance(error, MessageTooLargeError)
    gate.open()
    assert isinstance(await other, Episode)


def opening() -> TraceDelta:
    return TraceDelta(trace_id="t", append=Trace(header=TraceHeader(trace_id="t")))


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        ([DeltaStream(deltas=[opening(), TraceDelta(trace_id="t", seq=2, append=Trace())])], AssemblyError),
        ([DeltaStream(deltas=[TraceDelta(trace_id="t", seq=0, append=Trace())])], AssemblyError),
        ([DeltaStream(deltas=[opening(), opening()])], AssemblyError),
        (
            [DeltaStream(deltas=[opening()]), DeltaStream(reply=RunReply(head=EpisodeHead(ok=True)))],
            AssemblyError,
        ),
        ([b"\xff\xff\xff\xff"], EnvError),
    ],
)
async def test_a_stream_that_cannot_be_assembled_ends_its_own_run(
    recorded: RecordedClient,
    pool: Subject,
    new_gate: Callable[[], Gate],
    stream: list[DeltaStream | bytes],
    kind: type[EnvError],
) -> None:
    gate, run = new_gate(), new_id()
    waits = {"script": [["trace"], ["say", 1], ["wait", str(gate.path)], ["say", 1]]}
    other = asyncio.create_task(recorded.run(waits, env="scripted", request_id=new_id()))
    async with ScriptedWorker("foreign") as worker:
        steps = [Send(data if isinstance(data, bytes) else data.SerializeToString()) for data in stream]
        worker.script(run, *steps)
        await worker.register(pool.address)
        with pytest.raises(kind) as caught:
            await recorded.client.run({}, env="foreign", request_id=run)
        assert run not in str(caught.value)
        # The worker is told, by way of the broker, although it has ended the run already.
        await worker.until(lambda: [cancel.request_id for cancel in worker.cancels] == [run])
    assert isinstance(await recorded.run({"turns": 2}), Episode)
    await pool.pipe.seen(recorded.runs[0], EnvironmentBegan)
    assert not pool.pipe.history.of(recorded.runs[0], EnvironmentEnded)
    gate.open()
    assert isinstance(await other, Episode)

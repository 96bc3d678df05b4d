"""Engines asked from processes of their own, at a worker where holes fail a run: `--array-strict`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from env_client import HookFailedError, arrays, check_episode
from env_client.request import Endpoint
from tests.engine import PROFILES, Fault, Quirk, Reply, ScriptedEngine, Served, held, refused
from tests.helpers.engine_pool import EnginePool, engine_pool, task_of, user
from tests.helpers.engine_witness import Witness, assert_arrays, assert_tokens, info_of, only_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY: Final = "sk-isolated-0123456789abcdef"
SERVED: Final = Served(sampling_mask=True)
TASK: Final = task_of([user("one")], [user("two")], [user("three")])


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    variables = {
        "ENV_WORKER_ARRAY_STRICT": "true",
        "ENV_WORKER_ALLOW_KEY_VARIABLE": "ISOLATED_ENGINE_KEY",
        "ISOLATED_ENGINE_KEY": KEY,
    }
    async with engine_pool("--isolate", "process", **variables) as pool:
        yield pool


@pytest.mark.parametrize(
    ("profile", "dialect"), [("vllm-0.33", "vllm-generate"), ("sglang-0.5.23", "sglang-chat")]
)
async def test_conversations_and_their_arrays(pool: EnginePool, profile: str, dialect: str) -> None:
    async def converse(number: int) -> None:
        witness = Witness([f"first {number} 🐈", Reply("second", versions=("a", "b")), "third"])
        async with ScriptedEngine(PROFILES[profile], witness, served=SERVED) as engine:
            episode = await pool.play(engine, dialect, TASK)
        check_episode(episode)
        assert episode.head.ok, episode.head.errors
        trace = only_trace(episode)
        assert_tokens(trace, witness.heard)
        await assert_arrays(pool.trainer, trace, witness.heard)
        assert [len(call.weight_versions) for call in trace.calls] == [1, 2, 1]
        assert info_of(trace, "engine") == {"dialect": dialect, "logprobs_mode": "raw"}

    await asyncio.gather(*map(converse, range(3)))


async def test_failures_and_keys(pool: EnginePool) -> None:
    witness = Witness(["first", "second", "third"])
    faults = [Fault(), refused(503), Fault("dropped")]
    async with ScriptedEngine(
        PROFILES["vllm-0.33"], witness, served=Served(sampling_mask=True, api_key=KEY), faults=faults
    ) as engine:
        endpoint = Endpoint(engine.url, "vllm-generate", {}, "ISOLATED_ENGINE_KEY")
        episode = await pool.client.run(TASK, endpoint=endpoint)
        assert {record.key for record in engine.requests} == {KEY}
        engine.say(["first"])
        # A turn is three requests: what fails for good is the second turn's first one.
        engine.fail(Fault(), Fault(), Fault(), refused(400, message="no more"))
        given_up = await pool.client.run(TASK, endpoint=endpoint)
    assert episode.head.ok
    trace = only_trace(episode)
    assert_tokens(trace, witness.heard)
    errors = [call.error.type for call in trace.calls if call.HasField("error")]
    assert errors == ["EngineRefusedError", "EngineUnreachableError"]
    assert not given_up.head.ok
    [error] = given_up.head.errors
    assert (error.type, error.phase) == ("EngineRefusedError", "model")
    assert "no more" in error.message
    assert not only_trace(given_up).rewards
    assert arrays.episode_reward(given_up) is None
    assert KEY.encode() not in episode.SerializeToString() + given_up.SerializeToString()


async def test_a_run_that_is_left_closes_its_request(pool: EnginePool) -> None:
    async with ScriptedEngine(served=SERVED, faults=[held()]) as engine:
        async with pool.client.stream(TASK, endpoint=Endpoint(engine.url, "vllm-generate")) as stream:
            reading = asyncio.create_task(stream.result())
            await engine.until(lambda engine: engine.active == 1)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        await engine.until(lambda engine: engine.disconnected == 1)
        await pool.idle()


async def test_a_hole_fails_the_run_with_its_reason(pool: EnginePool) -> None:
    reply = Reply("four", quirks=frozenset({Quirk.MASK_SHORT}))
    async with ScriptedEngine(reply=lambda _asked: reply, served=SERVED) as engine:
        with pytest.raises(HookFailedError, match="sampling_mask has 4 entries, expected 5"):
            await pool.play(engine, "vllm-generate", task_of([user("one")]))

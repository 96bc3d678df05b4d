"""A hundred rollouts at once on one worker, and turns of the largest size: its heartbeats stay in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from env_broker.config import BrokerSettings
from env_broker.server import BrokerServer
from env_client import ArrayClient, EnvClient, array_references, arrays, check_episode
from env_client.request import Endpoint
from tests.engine import Reply, expected_ids, expected_logprobs
from tests.helpers.engine_pool import ENVIRONMENT, HOOK, SAMPLING, VARIABLES, task_of, user
from tests.helpers.engine_process import EngineProcess, engine_process
from tests.helpers.engine_witness import Heard, expected_arrays, only_trace
from tests.helpers.kept_arrays import assert_equal
from tests.helpers.pool_watch import states, watcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from envtrio.v1.episode_pb2 import Episode

    from tests.helpers.pool_watch import PoolWatch

LEASE_SECONDS: Final = 5.0
HEARTBEAT_SECONDS: Final = 0.25
ROLLOUTS: Final = 100
GATES: Final = 20
TOKENS: Final = 6_000
LARGEST: Final = 200_000
TASK: Final = task_of([user("Tell me a long story. 🐈")])
PROMPT: Final = expected_ids([user("Tell me a long story. 🐈")])


@dataclass
class Beats:
    """Heartbeats of the worker: how late its loop said that it was, and how long the broker waited."""

    lag_millis: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def watch(self, broker: BrokerServer) -> None:
        """Note those to come."""
        heard = broker.pool.heartbeat

        def noted(*arguments: Any, **named: Any) -> Any:
            found = heard(*arguments, **named)
            now = time.monotonic()
            self.pauses.append(now - self._last)
            self._last = now
            self.lag_millis += [worker.load.loop_lag_millis for worker in broker.pool.workers()]
            return found

        broker.pool.heartbeat = noted  # type: ignore[method-assign]

    def assert_in_time(self, watch: PoolWatch) -> None:
        """None was so late that the lease was in danger, and the worker was never lost."""
        assert self.lag_millis
        assert max(self.lag_millis) < 1000 * LEASE_SECONDS / 2
        assert max(self.pauses) < LEASE_SECONDS
        assert {state for view in watch.views for state in states(view)} == {"READY"}


@dataclass
class Pool:
    """A broker in this process with one worker, and an engine of its own."""

    broker: BrokerServer
    client: EnvClient
    engine: EngineProcess
    watch: PoolWatch

    def run(self, dialect: str) -> asyncio.Task[Episode]:
        """Begin a rollout."""
        endpoint = Endpoint(self.engine.url, dialect)
        return asyncio.create_task(self.client.run(TASK, endpoint=endpoint))


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[Pool]:
    settings = BrokerSettings(
        environments=(ENVIRONMENT,),
        hook=HOOK,
        workers=1,
        max_concurrent=ROLLOUTS,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        lease_seconds=LEASE_SECONDS,
        drain_seconds=0.2,
        linger_seconds=0.2,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        patch.setenv("ENV_WORKER_ARRAY_MEMORY_BYTES", str(2**30))
        async with (
            engine_process("--tokens", str(TOKENS)) as engine,
            BrokerServer(settings) as broker,
            watcher(broker.address) as watching,
            EnvClient(broker.address, env="engine", sampling=SAMPLING, timeout=60.0) as client,
        ):
            watch = watching.watch()
            await watch.until(lambda view: states(view) == ["READY"])
            watch.views.clear()
            yield Pool(broker, client, engine, watch)


async def assert_right(episodes: Sequence[Episode], tokens: int) -> None:
    """Each is what the engine says to the one question, with its arrays."""
    heard = Heard(PROMPT, Reply.long(tokens).sampled())
    logprobs = expected_logprobs(tokens).astype("<f4").tobytes()
    expected = None
    async with ArrayClient() as trainer:
        for episode in episodes:
            assert episode.head.ok, episode.head.errors
            trace = only_trace(episode)
            assert np.array_equal(arrays.branch_token_ids(trace, 1), heard.ids)
            assert trace.nodes[1].logprobs == logprobs
            assert [call.completion_tokens for call in trace.calls] == [tokens]
            expected = expected or expected_arrays(trace, (0, 1), [heard])
            kept = {name: array for name, array in expected.items() if not name.startswith("sampling_mask")}
            [reference] = array_references(trace)
            async with trainer.releasing([reference]):
                assert_equal(await trainer.fetch(reference), kept)
    check_episode(episodes[0])


async def test_a_hundred_rollouts_of_large_turns_do_not_hold_up_the_heartbeat(pool: Pool) -> None:
    gates = [str(number % GATES) for number in range(ROLLOUTS)]
    await pool.engine.order(fail=[{"gate": gate, "path": "completions"} for gate in gates])
    beats = Beats()
    beats.watch(pool.broker)
    runs = [pool.run("vllm-completions" if number % 10 else "vllm-chat") for number in range(ROLLOUTS)]
    await pool.watch.until(lambda view: view.workers[0].running == ROLLOUTS)
    # One by one: an engine that makes all answers before it sends any is not what is tried here.
    for gate in dict.fromkeys(gates):
        await pool.engine.order(open=[gate])
    episodes = await asyncio.gather(*runs)
    await pool.watch.until(lambda view: not view.workers[0].running)
    beats.assert_in_time(pool.watch)
    await assert_right(episodes, TOKENS)


def answer_with_masks(tokens: int, width: int) -> bytes:
    """Of SGLang: `width` ids at each token, of which its own is the first."""
    own, row = "7", json.dumps([7, *range(100_000, 100_000 + width - 1)])
    choice = {
        "message": {"role": "assistant", "content": "wide"},
        "finish_reason": "stop",
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": ["own"],
        "meta_info": {"output_token_logprobs": ["pair"], "output_token_sampling_mask": ["row"]},
    }
    text = json.dumps({"model": "m", "choices": [choice], "usage": {"completion_tokens": tokens}})
    for name, value in {"own": own, "pair": f"[-0.5, {own}, null]", "row": row}.items():
        text = text.replace(f'"{name}"', ",".join([value] * tokens))
    return text.encode()


def chat_answer(message: bytes) -> bytes:
    """With these keys in its message."""
    return b'{"choices":[{"finish_reason":"stop","message":{"role":"assistant",' + message + b"}}]}"


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    """The URL of a server that answers every request with `body`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def test_no_answer_costs_the_worker_its_lease(pool: Pool) -> None:
    await pool.engine.order(fail=[{"gate": "bystander"}])
    beats = Beats()
    beats.watch(pool.broker)
    bystander = pool.run("vllm-chat")
    await pool.watch.until(lambda view: view.workers[0].running == 1)
    async with (
        answering(answer_with_masks(6_000, 1_000)) as wide,
        answering(b'{"choices":[' + b"[]," * 6_000_000 + b"0]}") as empty,
        answering(b'{"choices":[' + b"[]," * 20_000_000 + b"0]}") as too_many,
        answering(chat_answer(b'"content":"hi","x":[' + b"[]," * 1_000_000 + b"0]")) as beside,
        answering(chat_answer(b'"content":"' + b"a" * (65 << 20) + b'"')) as long,
        ArrayClient() as trainer,
    ):
        endpoints = [
            Endpoint(url, "sglang-chat") for url in (wide, wide, wide, beside, long, empty, too_many)
        ]
        *honest, laden, lengthy, useless, refused = await asyncio.gather(
            *(pool.client.run(TASK, endpoint=endpoint) for endpoint in endpoints)
        )
        await pool.engine.order(open=["bystander"])
        assert (await bystander).head.ok
        beats.assert_in_time(pool.watch)
        for episode in honest:
            assert episode.head.ok, episode.head.errors
            async with trainer.releasing(array_references(only_trace(episode))) as references:
                kept = await trainer.fetch(references[0])
                assert kept["sampling_mask.ids"].shape == (6_000_000,)
    for large, found in ((laden, "1000007 values or more"), (lengthy, "68157460 bytes of text or more")):
        assert not large.head.ok
        [error] = large.head.errors
        assert (error.type, error.phase) == ("MalformedAnswerError", "model")
        assert f"message of the engine's response has {found}, the limit is" in error.message
    assert "the engine's response has no choices" in useless.head.errors[0].message
    assert "20000002 lists and objects, the limit is 16777216" in refused.head.errors[0].message


async def test_a_turn_of_the_largest_size(pool: Pool) -> None:
    await pool.engine.order(by_turn=[{"tokens": LARGEST}])
    beats = Beats()
    beats.watch(pool.broker)
    episode = await pool.run("vllm-chat")
    beats.assert_in_time(pool.watch)
    await assert_right([episode], LARGEST)

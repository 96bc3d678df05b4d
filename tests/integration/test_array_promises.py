"""The promises of training arrays by their names in PROTOCOL.md, held by whole workers and real clients."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from env_client import (
    ArrayBudgetError,
    ArraysIncompleteError,
    ArraysLostError,
    ArraysNotFoundError,
    EnvClient,
    SyncArrayClient,
    array_references,
)
from env_worker import ArrayKeeper
from env_worker.config import WorkerSettings
from env_worker.server import WorkerServer
from tests.helpers.array_episodes import is_empty
from tests.helpers.kept_arrays import RememberingKeeper, assert_equal
from tests.helpers.pools import QUICK_STOP, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from envtrio.v1.episode_pb2 import Episode

EPISODES = 24
CLIENTS = 8
FETCHES = 40
TASK = {"turns": 12, "tokens_per_turn": 300, "layers": 24, "top_k": 4, "branches": 3}
FIELDS = ("routed_experts", "sampling_mask", "top_logprobs")
SECONDS = 50.0
BLOCK_BYTES = 2**20


@pytest.fixture(params=["memory", "spill"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> RememberingKeeper:
    """One that has room for a few episodes in memory, or none."""
    memory = 2**30 if request.param == "memory" else 4 * 2**20
    return RememberingKeeper(memory_bytes=memory, spill_dir=tmp_path, spill_bytes=2**30)


@pytest.fixture
async def server(keeper: RememberingKeeper) -> AsyncIterator[WorkerServer]:
    """A worker with it."""
    settings = WorkerSettings(environments=("synthetic",), drain_seconds=0, linger_seconds=0)
    server = WorkerServer(settings, hook=keeper)
    await server.start()
    yield server
    await server.stop(hurry=True)


async def references(
    server: WorkerServer, count: int, task: dict[str, Any], owner: str = ""
) -> list[dict[str, Any]]:
    """Those of so many episodes."""
    async with EnvClient(server.address, env="synthetic", owner=owner, timeout=SECONDS) as client:
        episodes = await asyncio.gather(*(client.run({**task, "seed": seed}) for seed in range(count)))
    return [
        reference
        for episode in episodes
        for trace in episode.traces
        for reference in json.loads(trace.info_json["training_arrays"])
    ]


class Storm:
    """What the trainers of one worker do, and what they may see."""

    def __init__(self, keeper: RememberingKeeper, references: list[dict[str, Any]]) -> None:
        self.keeper = keeper
        self.references = references
        self.going: set[str] = set()
        """Keys that somebody has begun to free: from then on a fetch may find nothing."""
        self.equal = self.refused = 0
        self._lock = threading.Lock()

    def fetch_some(self, seed: int) -> None:
        """One trainer: ranges of whatever there is, by both ways, each compared with what was kept."""
        rng = random.Random(seed)
        with SyncArrayClient(shared_memory=bool(seed % 2)) as client:
            for _ in range(FETCHES):
                self._fetch(client, rng)

    def free_some(self, seed: int) -> None:
        """Releases, and discards of whole episodes, of two thirds of all."""
        rng = random.Random(seed)
        with SyncArrayClient() as client:
            for reference in rng.sample(self.references, len(self.references) * 2 // 3):
                episode = self.keeper.episodes[reference["key"]]
                if rng.random() < 0.3:
                    keys = [key for key, owner in self.keeper.episodes.items() if owner is episode]
                    self.going.update(keys)
                    self.keeper.discard(episode.without_nodes())
                else:
                    self.going.add(reference["key"])
                    client.release(reference)

    def _fetch(self, client: SyncArrayClient, rng: random.Random) -> None:
        reference = rng.choice(self.references)
        branch = self.keeper.branches[reference["key"]]
        start, end = sorted(rng.choices(range(branch.tokens + 1), k=2))
        fields = rng.sample(FIELDS, rng.randint(1, 3))
        try:
            found = client.fetch(reference, fields, slice(start, end))
        except ArraysNotFoundError:
            assert reference["key"] in self.going
            with self._lock:
                self.refused += 1
            return
        whole = branch.of(start, end)
        assert_equal(found, {name: whole[name] for name in whole if name.split(".")[0] in fields})
        with self._lock:
            self.equal += 1


async def test_never_other_data(keeper: RememberingKeeper, server: WorkerServer) -> None:
    files = psutil.Process().num_fds()
    storm = Storm(keeper, await references(server, EPISODES, TASK))
    assert len(storm.references) == EPISODES * TASK["branches"]
    trainers = [asyncio.to_thread(storm.fetch_some, seed) for seed in range(CLIENTS)]
    await asyncio.gather(*trainers, asyncio.to_thread(storm.free_some, CLIENTS))
    assert storm.equal + storm.refused == CLIENTS * FETCHES
    assert storm.equal > CLIENTS
    assert storm.refused
    with SyncArrayClient() as client:
        await asyncio.to_thread(client.release, *storm.references)
    async with asyncio.timeout(SECONDS):
        while not is_empty(keeper.array_store):  # noqa: ASYNC110  # a fetch ends here after its caller has all
            await asyncio.sleep(0.001)
    assert psutil.Process().num_fds() <= files + 8  # gRPC's own connections, no segment


@pytest.mark.parametrize("mebibytes", [36, 293])
async def test_arrays_are_final(server: WorkerServer, keeper: RememberingKeeper, mebibytes: int) -> None:
    tokens = mebibytes * 2**20 // 384 // 4
    task = {"turns": 4, "tokens_per_turn": tokens, "layers": 48, "top_k": 8}
    [reference] = await references(server, 1, task)
    size = reference["arrays"]["routed_experts"]["bytes"]
    assert size == tokens * 4 * 384
    expected = keeper.branches[reference["key"]].of(0, tokens * 4)
    for shared_memory in (True, False):
        with SyncArrayClient(shared_memory=shared_memory) as client:
            assert_equal(await asyncio.to_thread(client.fetch, reference), expected)
            halves = [
                await asyncio.to_thread(client.fetch, reference, ["routed_experts"], part)
                for part in (slice(tokens * 2 + 1), slice(tokens * 2 + 1, None))
            ]
        joined = np.concatenate([half["routed_experts"] for half in halves])
        assert np.array_equal(joined, expected["routed_experts"])


async def test_arrays_are_final_with_three_gibibytes() -> None:
    """By an environment whose array takes no room itself, so that the reference alone does."""
    if psutil.virtual_memory().available < 10 * 2**30:
        pytest.skip("needs 10 GiB of free memory, for the worker's and the trainer's arrays")
    keeper = RememberingKeeper(memory_bytes=4 * 2**30)
    keeper_only = super(RememberingKeeper, keeper)
    settings = WorkerSettings(
        environments=("broad=tests.helpers.broad_environment:BroadEnvironment",),
        drain_seconds=0,
        linger_seconds=0,
    )

    class Plain:
        """The keeper without the memory."""

        array_store = keeper.array_store
        keep = staticmethod(keeper_only.keep)
        discard = staticmethod(keeper_only.discard)

    server = WorkerServer(settings, hook=Plain())
    await server.start()
    try:
        async with EnvClient(server.address, timeout=SECONDS) as client:
            episode = await client.run({"gibibytes": 3})
        [reference] = json.loads(episode.traces[0].info_json["training_arrays"])
        array = reference["arrays"]["routed_experts"]
        assert array["bytes"] > 3 * 2**30 - 2**20
        rows, layers, top_k = array["shape"]
        row = (np.arange(layers * top_k) % 251).astype(np.uint8).reshape(layers, top_k)
        block = np.broadcast_to(row, (BLOCK_BYTES // row.size, layers, top_k)).copy()
        for shared_memory in (True, False):
            with SyncArrayClient(shared_memory=shared_memory) as trainer:
                found = await asyncio.to_thread(trainer.fetch, reference, ["routed_experts"])
            whole = found.pop("routed_experts")
            assert whole.shape == (rows, layers, top_k)
            assert all(
                np.array_equal(whole[first : first + len(block)], block[: rows - first])
                for first in range(0, rows, len(block))
            )
            del whole
    finally:
        await server.stop(hurry=True)


async def test_nothing_is_evicted() -> None:
    """A worker that is full refuses runs, and what it holds stays until it is released."""
    keeper = RememberingKeeper(memory_bytes=8 * 2**20)
    settings = WorkerSettings(environments=("synthetic",), drain_seconds=0, linger_seconds=0)
    server = WorkerServer(settings, hook=keeper)
    await server.start()
    try:
        kept: list[dict[str, Any]] = []

        async def fill() -> None:
            while True:
                kept.extend(await references(server, 1, TASK))

        with pytest.raises(ArrayBudgetError) as refused:
            await asyncio.wait_for(fill(), SECONDS)
        assert refused.value.retry_after
        assert int(refused.value.metadata["limit"]) == 8 * 2**20
        assert len(kept) > 2
        with SyncArrayClient() as client:
            for reference in kept:
                branch = keeper.branches[reference["key"]]
                found = await asyncio.to_thread(client.fetch, reference)
                assert_equal(found, branch.of(0, branch.tokens))
            await asyncio.to_thread(client.release, *kept)
        assert len(await references(server, 1, TASK)) == TASK["branches"]
    finally:
        await server.stop(hurry=True)


async def test_what_is_held_is_what_was_delivered(server: WorkerServer, keeper: RememberingKeeper) -> None:
    """Of runs whose callers leave at any moment, nothing is held but what was confirmed to one of them."""
    rng = random.Random(5)
    client = EnvClient(server.address, env="synthetic", timeout=SECONDS)

    def play(seed: int) -> Awaitable[Episode]:
        return client.run({"turns": 3, "tokens_per_turn": 40, "turn_seconds": 0.004, "seed": seed})

    async def run(seed: int) -> Episode | None:
        try:
            async with asyncio.timeout(rng.uniform(0, longest)):
                return await play(seed)
        except TimeoutError:
            return None

    async with client:
        began = time.monotonic()
        episodes = list(await asyncio.gather(*map(play, range(24))))
        longest = 1.5 * (time.monotonic() - began)  # what a moment is, is the machine's affair
        episodes += [
            episode
            for _ in range(5)
            for episode in await asyncio.gather(*(run(seed) for seed in range(24)))
            if episode is not None
        ]
    await server.runner.wait_hooks()
    # A caller that left while its confirmation was being answered has lost its episode, which is delivered.
    assert keeper.held_arrays == server.runner.counters["confirmed"] >= len(episodes) > 0
    with SyncArrayClient() as trainer:
        for episode in episodes:
            [reference] = array_references(episode.traces[0])
            branch = keeper.branches[reference["key"]]
            found = await asyncio.to_thread(trainer.fetch, reference)
            assert_equal(found, branch.of(0, branch.tokens))


async def test_released_once(server: WorkerServer, keeper: RememberingKeeper) -> None:
    """Of many at the same time, by key and by owner."""
    found = await references(server, 8, TASK, owner="step-1")
    clients = [SyncArrayClient() for _ in range(CLIENTS)]

    def release(client: SyncArrayClient) -> int:
        return client.release(*found) + client.release_owner(server.address, "step-1")

    counts = await asyncio.gather(*(asyncio.to_thread(release, client) for client in clients))
    assert sum(counts) == len(found)
    assert (keeper.held_arrays, keeper.held_array_bytes) == (0, 0)
    for client in clients:
        assert await asyncio.to_thread(release, client) == 0
        client.close()


async def test_a_hole_is_never_served() -> None:
    """By an environment that leaves one out; the other fields are served."""
    keeper = ArrayKeeper(memory_bytes=2**20)
    settings = WorkerSettings(
        environments=("holey=tests.helpers.broad_environment:HoleyEnvironment",),
        drain_seconds=0,
        linger_seconds=0,
    )
    server = WorkerServer(settings, hook=keeper)
    await server.start()
    try:
        async with EnvClient(server.address, timeout=SECONDS) as client:
            episode = await client.run({})
        [reference] = json.loads(episode.traces[0].info_json["training_arrays"])
        assert set(reference["incomplete"]) == {"routed_experts"}
        assert "node 1" in reference["incomplete"]["routed_experts"]
        claimed = {"routed_experts": {"dtype": "u1", "shape": [5, 2, 2], "bytes": 20}}
        blind = {**reference, "incomplete": {}, "arrays": {**reference["arrays"], **claimed}}
        with SyncArrayClient() as trainer:
            assert set(await asyncio.to_thread(trainer.fetch, reference)) == set(reference["arrays"])
            for asked in (reference, blind):
                with pytest.raises(ArraysIncompleteError, match="node 1") as refused:
                    await asyncio.to_thread(trainer.fetch, asked, ["sampling_mask", "routed_experts"])
                assert refused.value.metadata["field"] == "routed_experts"
    finally:
        await server.stop(hurry=True)


@pytest.mark.parametrize("shared_memory", [True, False])
async def test_lost_is_said(shared_memory: bool) -> None:
    """The fetch says that the arrays are lost, within its bound; what was mapped before stays as it was."""
    flags = ("--env", "synthetic", "--hook", "array-keeper", *QUICK_STOP)
    async with serving("env_worker", *flags) as worker:
        async with EnvClient(worker.address, timeout=SECONDS) as client:
            episode = await client.run({"turns": 2, "tokens_per_turn": 60_000, "layers": 48, "top_k": 8})
        [reference] = json.loads(episode.traces[0].info_json["training_arrays"])
        with SyncArrayClient(shared_memory=shared_memory, lost_seconds=1.0) as trainer:
            before = await asyncio.to_thread(
                trainer.fetch, reference, ["routed_experts"], slice(1000, 70_000)
            )
            copy = before["routed_experts"].copy()

            def kill(done: int, whole: int) -> None:
                assert 0 <= done <= whole
                os.kill(worker.pid, 9)

            streaming = SyncArrayClient(shared_memory=False, lost_seconds=1.0)
            with streaming, pytest.raises(ArraysLostError, match=worker.address):
                await asyncio.to_thread(streaming.fetch, reference, on_progress=kill)
            with pytest.raises(ArraysLostError):
                await asyncio.to_thread(trainer.fetch, reference)
            assert np.array_equal(before["routed_experts"], copy)
            assert await asyncio.to_thread(trainer.release, reference) == 0
        await worker.process.wait()

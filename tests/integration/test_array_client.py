"""The array clients against a real worker: byte for byte, by both ways, and what they say when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_client import (
    ArrayClient,
    ArraysIncompleteError,
    ArraysLostError,
    ArraysNotFoundError,
    EnvClient,
    QueueFullError,
    SyncArrayClient,
    TokenRangeError,
    array_references,
    channels,
)
from env_worker.config import WorkerSettings
from env_worker.domain import Episode, Message, SamplingParams
from env_worker.server import WorkerServer
from tests.helpers.array_service import array_service, kept
from tests.helpers.brisk_keepalive import brisk
from tests.helpers.kept_arrays import RememberingKeeper, assert_equal
from tests.helpers.pools import QUICK_STOP, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.helpers.array_service import ArrayService

SECONDS = 30.0
TASK = {"turns": 3, "tokens_per_turn": 40, "layers": 4, "top_k": 2, "branches": 3}


@pytest.fixture(params=["memory", "spill"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ArrayService]:
    """The worker's service, with everything in memory or everything spilled."""
    async with array_service(tmp_path if request.param == "spill" else None) as made:
        yield made


@pytest.mark.parametrize("shared_memory", [True, False], ids=["map", "stream"])
@pytest.mark.parametrize("tokens", [1, 2, 9, 3000])
async def test_ranges_byte_for_byte(service: ArrayService, tokens: int, shared_memory: bool) -> None:
    reference = service.keep(tokens)
    branch = service.keeper.branches[reference["key"]]
    cuts = sorted({0, 1, tokens // 3, tokens - 1, tokens})
    async with ArrayClient(shared_memory=shared_memory) as client:
        assert_equal(await client.fetch(reference), branch.of(0, tokens))
        for start in cuts:
            for end in cuts:
                if start <= end:
                    found = await client.fetch(reference, tokens=slice(start, end))
                    assert_equal(found, branch.of(start, end))
        part = await client.fetch(reference, ["top_logprobs"], slice(-1, None))
        whole = branch.of(tokens - 1, tokens)
        assert_equal(part, {name: whole[name] for name in whole if name.startswith("top_logprobs")})
        out = {name: np.empty_like(array) for name, array in branch.of(0, tokens).items()}
        found = await client.fetch(reference, out=out)
        assert all(found[name] is array for name, array in out.items())
        assert_equal(out, branch.of(0, tokens))
    way = service.store.stats()
    assert (way.fetched_bytes == 0) == shared_memory


async def test_from_an_episode_to_its_arrays_and_back() -> None:
    """Every branch of a run's episode, wide experts and repaired rows included; then nothing is left."""
    keeper = RememberingKeeper()
    settings = WorkerSettings(environments=("synthetic",), drain_seconds=0, linger_seconds=0)
    server = WorkerServer(settings, hook=keeper)
    await server.start()
    try:
        async with EnvClient(server.address, env="synthetic", owner="trainer", timeout=SECONDS) as client:
            episodes = await asyncio.gather(*(client.run({**TASK, "seed": seed}) for seed in range(4)))
        references = [
            found for each in episodes for trace in each.traces for found in array_references(trace)
        ]
        assert len(references) == 4 * TASK["branches"]
        async with ArrayClient(hosts=["127.0.0.1"], concurrency=3) as trainer:
            async with trainer.releasing(references[:6]):
                for reference, found in zip(references, await trainer.fetch_many(references), strict=True):
                    branch = keeper.branches[reference["key"]]
                    assert_equal(found, branch.of(0, reference["tokens"]))
            with pytest.raises(ArraysNotFoundError, match="released"):
                await trainer.fetch(references[0])
            assert await trainer.release(*references[:7]) == 1
            assert await trainer.release_owner(server.address, "trainer") == len(references) - 7
            assert await trainer.release_owner(server.address, "trainer") == 0
        assert (keeper.held_arrays, keeper.held_array_bytes) == (0, 0)
    finally:
        await server.stop(hurry=True)


async def test_wide_experts_a_hole_and_ranges_that_the_worker_refuses() -> None:
    async with array_service() as service:
        episode = Episode("e" * 32, "test", {}, "e" * 32, "", "")
        rows = np.arange(1, 241, dtype=np.uint16).reshape(10, 3, 8) * 250
        episode.new_trace().add_node(
            Message.assistant("kept"), np.zeros(10, np.int32), sampled=True, routed_experts=rows
        )
        super(RememberingKeeper, service.keeper).keep(episode, SamplingParams())
        [reference] = episode.traces[0].info["training_arrays"]  # type: ignore[misc]
        assert isinstance(reference, dict)
        async with ArrayClient() as client:
            found = await client.fetch(reference, tokens=slice(2, 7))
            assert_equal(found, {"routed_experts": rows[2:7]})
            with pytest.raises(ArraysIncompleteError, match="sampling_mask"):
                await client.fetch(reference, ["sampling_mask"])
            # What the reference hides, the worker knows.
            shape = [0]
            hidden: dict[str, Any] = {
                **reference,
                "arrays": {"sampling_mask.ids": {"dtype": "<i4", "shape": shape, "bytes": 0}},
                "incomplete": {},
                "tokens": 11,
            }
            with pytest.raises(ArraysIncompleteError) as caught:
                await client.fetch(hidden, ["sampling_mask"], slice(0, 10))
            assert caught.value.metadata["field"] == "sampling_mask"
            assert caught.value.metadata["hole"]
            more = {"dtype": "<u2", "shape": [11, 3, 8], "bytes": 528}
            with pytest.raises(TokenRangeError):
                await client.fetch({**hidden, "arrays": {"routed_experts": more}}, ["routed_experts"])
            with pytest.raises(ArraysNotFoundError):
                await client.fetch({**reference, "key": "0" * 32})


async def test_another_instance_is_told_from_the_one_that_kept() -> None:
    async with array_service() as service:
        reference = service.keep(10)
        other = {**reference, "instance": "0" * 32}
        async with ArrayClient(lost_seconds=60) as client:
            began = time.monotonic()
            with pytest.raises(ArraysLostError, match="00000000"):
                await client.fetch(other)
            assert time.monotonic() - began < 5  # At once.
            assert await client.release(other) == 0
            assert await client.release(reference) == 1


async def test_a_mapped_array_stays_as_it_is_after_its_release() -> None:
    async with array_service() as service:
        reference = service.keep(3000)
        expected = service.keeper.branches[reference["key"]].of(0, 3000)
        async with ArrayClient() as client:
            found = await client.fetch(reference)
            assert await client.release(reference) == 1
            await service.until(lambda: service.keeper.held_array_bytes == 0)  # and its fetch has ended there
            service.keep(3000, owner="another")  # Might take the same place.
            assert_equal(found, expected)
            with pytest.raises(ArraysNotFoundError):
                await client.fetch(reference)
        assert_equal(found, expected)


async def test_a_cancelled_fetch_ends_on_the_worker() -> None:
    async with array_service() as service:
        reference = kept(super(RememberingKeeper, service.keeper), 200_000)
        async with ArrayClient(shared_memory=False, concurrency=1) as client:
            fetching = asyncio.create_task(client.fetch(reference))
            await service.until(lambda: service.store.stats().open_fetches == 1)
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            await service.until(lambda: service.store.stats().open_fetches == 0)
            assert len((await client.fetch(reference, tokens=slice(5)))["routed_experts"]) == 5


async def test_a_worker_with_too_many_fetches() -> None:
    async with array_service(max_fetches=0) as service:
        async with ArrayClient(lost_seconds=0) as client:
            with pytest.raises(QueueFullError, match="limit is 0") as caught:
                await client.fetch(service.keep(5))
        assert caught.value.retry_after == 1.0


async def test_a_worker_that_stands_still_is_lost_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP, or when its host is cut off: nothing comes, and nothing says why."""
    options = dict(brisk(channels._OPTIONS)) | {"grpc.min_reconnect_backoff_ms": 300}
    monkeypatch.setattr(channels, "_OPTIONS", tuple(options.items()))
    flags = ("--env", "synthetic", "--hook", "array-keeper", *QUICK_STOP)
    async with serving("env_worker", *flags) as worker:
        async with EnvClient(worker.address, timeout=SECONDS) as client:
            episode = await client.run({**TASK, "tokens_per_turn": 40_000, "branches": 1})
        [reference] = array_references(episode.traces[0])
        async with ArrayClient(lost_seconds=0.5) as trainer:
            first = await trainer.fetch(reference)
            os.kill(worker.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(ArraysLostError, match=worker.address):
                    await trainer.fetch(reference)
                assert time.monotonic() - began < 10
            finally:
                os.kill(worker.pid, signal.SIGCONT)
            again = await trainer.fetch(reference)
            assert_equal(again, first)
            assert await trainer.release(reference) == 1


async def test_a_synchronous_client_in_many_threads() -> None:
    async with array_service() as service:
        references = [service.keep(tokens) for tokens in range(1, 33)]

        def fetch_all(client: SyncArrayClient) -> None:
            for reference in references:
                branch = service.keeper.branches[reference["key"]]
                assert_equal(client.fetch(reference), branch.of(0, reference["tokens"]))

        for shared_memory in (True, False):
            with SyncArrayClient(shared_memory=shared_memory) as client:
                await asyncio.gather(*(asyncio.to_thread(fetch_all, client) for _ in range(8)))
                assert len(client._core._links) == 1

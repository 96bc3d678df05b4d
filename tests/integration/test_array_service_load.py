"""TrainingArrayService beside very many callers, and those that do not read or wait for a slow disk."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

from env_worker import ArrayKeeper
from env_worker.arrays import segment
from env_worker.arrays.limits import ArrayLimits
from env_worker.arrays.store import ArrayStore
from tests.helpers.array_service import LARGE, SECONDS, array_service, read_on
from tests.helpers.array_worker import array_worker, references
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import SMALL

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TASK = {"turns": 2, "tokens_per_turn": 40_000, "layers": 48, "top_k": 8}


async def test_more_fetches_than_a_worker_serves_are_told_when_to_come_again() -> None:
    async with array_service(max_fetches=2) as service:
        reference = service.keep(LARGE)
        calls = [service.calls.open(reference) for _ in range(2)]
        await service.until(lambda: service.store.stats().open_fetches == 2)
        failure = (await service.calls.fetch(reference)).failure
        assert failure is not None
        assert failure.kind == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert (failure.metadata["value"], failure.metadata["limit"]) == ("2", "2")
        assert failure.retry_seconds == 1.0
        answer = await service.calls.release([new_id()], instance=reference["instance"])
        assert answer == (0, 1, 0), "a release always has its turn"
        calls.pop().cancel()
        await service.until(lambda: service.busy == 1)
        assert (await service.calls.fetch(reference)).failure is None
        assert (await read_on(calls.pop())).failure is None


async def test_fetches_beyond_those_that_stream_wait_for_their_turn_and_mapped_ones_do_not() -> None:
    async with array_service(max_streams=2) as service:
        reference, other = service.keep(LARGE), service.keep(100)
        streaming = [service.calls.open(reference) for _ in range(2)]
        await service.until(lambda: service.places.taken == 2)
        waiting = [asyncio.create_task(service.calls.fetch(one)) for one in (reference, other, other)]
        await service.until(lambda: service.places.waiting == 3)
        mapped = await service.calls.fetch(reference, transports=["memfd"])
        assert mapped.failure is None
        failure = (await service.calls.fetch(other, token_end=101)).failure
        assert failure is not None
        assert failure.reason == "TOKEN_RANGE", "at once"
        answer = await service.calls.release([reference["key"]], instance=reference["instance"])
        assert isinstance(answer, tuple), "and changes nothing for those that wait"
        waiting[1].cancel()
        await service.until(lambda: service.places.waiting == 2)
        assert (await read_on(streaming.pop())).failure is None
        for fetched in (await waiting[0], await waiting[2]):
            assert fetched.failure is None
        assert (await read_on(streaming.pop())).failure is None
        await service.until(lambda: service.places.taken == 0)


async def test_a_caller_that_takes_nothing_gives_its_place_to_one_that_waits() -> None:
    async with array_service(max_streams=1, patience_seconds=0.05) as service:
        reference, other = service.keep(LARGE), service.keep(100)
        call = await service.unread(reference)
        assert (await service.calls.fetch(other)).failure is None
        failure = (await read_on(call)).failure
        assert failure is not None
        assert failure.kind == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert failure.retry_seconds == 1.0
        assert "read as it comes" in failure.message
        assert (await service.calls.fetch(reference)).failure is None


async def test_runs_and_questions_have_their_turn_beside_very_many_fetches() -> None:
    """Bounds of a promise, and far above what they take; 200 readers made a question wait for 4 s."""
    async with array_worker(ArrayKeeper()) as worker:
        [reference] = references(await worker.client.run(TASK))
        dead = [worker.calls.open(reference) for _ in range(20)]

        async def read_again_and_again() -> None:
            while True:
                assert (await worker.calls.fetch(reference, token_end=10_000)).failure is None

        reading = [asyncio.create_task(read_again_and_again()) for _ in range(20)]
        try:
            for _ in range(5):
                async with asyncio.timeout(5):
                    await worker.client.describe()
                    assert (await worker.client.run(SMALL)).code == "OK"
            assert not any(task.done() for task in reading)
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            for call in dead:
                call.cancel()


async def test_a_slow_disk_holds_up_nobody_whose_arrays_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArrayStore(ArrayLimits(8 * 2**20, tmp_path, 2**30))
    read, go_on, begun = segment._read, threading.Event(), threading.Event()

    def slow_read(fd: int, offset: int, length: int) -> bytes:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
            begun.set()
            assert go_on.wait(SECONDS)
        return read(fd, offset, length)

    async with array_service(store=store) as service:
        there, spilled = service.keep(1_000), service.keep(LARGE)
        assert (store.spilled(there["key"]), store.spilled(spilled["key"])) == (False, True)
        monkeypatch.setattr(segment, "_read", slow_read)
        try:
            # Of a range already the opening reads: what the checksum needs.
            slow = [asyncio.create_task(service.calls.fetch(spilled, token_start=7)) for _ in range(20)]
            assert await asyncio.to_thread(begun.wait, SECONDS)
            assert (await service.calls.fetch(there, token_start=7)).failure is None
            answer = await service.calls.release([there["key"]], instance=there["instance"])
            assert isinstance(answer, tuple)
            assert answer[0] == 1
            assert not any(task.done() for task in slow)
        finally:
            go_on.set()
        assert {(await task).failure for task in slow} == {None}

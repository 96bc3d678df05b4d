"""TrainingArrayService beside callers that do not read, that hang up, and disks and workers that fail."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_worker import ArrayKeeper
from env_worker.arrays import segment, serving
from env_worker.arrays.limits import ArrayLimits, Home
from env_worker.arrays.serving import ArrayServing
from env_worker.arrays.store import ArrayStore
from tests.helpers.array_service import LARGE, NARROW, SECONDS, ArrayCalls, array_service, read_on
from tests.helpers.array_worker import references
from tests.helpers.clock import FakeClock
from tests.helpers.failure import failure_of
from tests.helpers.kept_arrays import assert_equal
from tests.helpers.stub_client import new_id
from tests.helpers.worker_process import worker_process

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.array_service import Reference
    from tests.helpers.worker_process import WorkerProcess

MEDIA = pytest.mark.parametrize("medium", ["memory", "spill"])


def folder(medium: str, tmp_path: Path) -> Path | None:
    return tmp_path if medium == "spill" else None


@MEDIA
async def test_a_slow_reader_holds_up_nobody_and_a_release_meanwhile_changes_nothing_for_it(
    medium: str, tmp_path: Path
) -> None:
    async with array_service(folder(medium, tmp_path)) as service:
        slow, other = service.keep(LARGE), service.keep(100)
        call = await service.unread(slow)
        held = service.store.held_array_bytes
        for _ in range(3):
            assert (await service.calls.fetch(other)).failure is None
        for fields in ({}, {"transports": ["memfd"]}):
            assert (await service.calls.fetch(slow, **fields)).failure is None
        answer = await service.calls.release([slow["key"], other["key"]], instance=slow["instance"])
        assert isinstance(answer, tuple)
        assert answer[:2] == (2, 0)
        failure = (await service.calls.fetch(slow)).failure
        assert failure is not None
        assert failure.reason == "ARRAYS_NOT_FOUND", "at once"
        assert 15_000_000 < service.store.held_array_bytes < held, "the budget counts it until it was sent"
        fetched = await read_on(call)
        assert_equal(fetched.arrays, service.keeper.branches[slow["key"]].of(0, LARGE))
        await service.until(lambda: service.store.held_array_bytes == 0)


async def test_a_discard_during_a_fetch_lets_it_end_with_all_its_bytes() -> None:
    async with array_service() as service:
        reference = service.keep(LARGE)
        call = await service.unread(reference)
        service.keeper.discard(service.keeper.episodes[reference["key"]])
        fetched = await read_on(call)
        assert_equal(fetched.arrays, service.keeper.branches[reference["key"]].of(0, LARGE))


@MEDIA
async def test_a_caller_that_hangs_up_leaves_nothing_behind(medium: str, tmp_path: Path) -> None:
    async with array_service(folder(medium, tmp_path)) as service:
        reference = service.keep(LARGE)
        before = asyncio.all_tasks()
        for begun in (True, False):
            call = await service.unread(reference) if begun else service.calls.open(reference)
            call.cancel()
            await service.until(lambda: service.store.stats().open_fetches == 0)
        # gRPC's own task that takes up calls is a new one after each.
        await service.until(lambda: all("_request_call" in repr(t) for t in asyncio.all_tasks() - before))
        assert (await service.calls.fetch(reference)).failure is None


async def test_a_caller_that_hangs_up_while_its_fetch_is_being_opened_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    open_ = ArrayStore.open

    def slowly(*arguments: Any) -> Any:
        opening.set()
        assert go_on.wait(SECONDS)
        return open_(*arguments)

    async with array_service() as service:
        reference = service.keep(10)
        monkeypatch.setattr(ArrayStore, "open", slowly)
        call = service.calls.open(reference)
        assert await asyncio.to_thread(opening.wait, SECONDS)
        call.cancel()
        await service.until(lambda: not service.busy)
        go_on.set()
        await service.until(lambda: service.store.stats().fetches == 1)
        await service.until(lambda: service.store.stats().open_fetches == 0)


async def test_a_caller_that_takes_nothing_is_left_and_hears_why_when_it_reads_after_all() -> None:
    async with array_service(stall_seconds=0.1) as service:
        reference = service.keep(LARGE)
        call = await service.unread(reference)
        await service.until(lambda: service.store.stats().open_fetches == 0)
        failure = (await read_on(call)).failure
        assert failure is not None
        assert failure.kind == ("DEADLINE_EXCEEDED", "DEADLINE")
        assert "nothing for 0.1 s" in failure.message
        assert "fetch again" in failure.message


async def test_a_disk_that_fails_ends_the_fetch_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, failing = segment._read, threading.Event()

    def failing_read(fd: int, offset: int, length: int) -> bytes:
        if failing.is_set():
            raise OSError(5, "Input/output error")
        return read(fd, offset, length)

    monkeypatch.setattr(segment, "_read", failing_read)
    async with array_service(tmp_path) as service:
        reference = service.keep(LARGE)
        call = await service.unread(reference)
        failing.set()
        failure = (await read_on(call)).failure
        assert failure is not None
        assert failure.kind == ("INTERNAL", "INTERNAL")
        assert "Input/output error" in failure.message
        failing.clear()
        assert (await service.calls.fetch(reference)).failure is None
    assert any("fault of the worker itself, or of its disk" in record.message for record in caplog.records)


async def test_a_release_of_very_many_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so does giving gigabytes back at the end of a fetch."""
    threads: list[threading.Thread] = []

    def noted(name: str) -> None:
        method = getattr(ArrayStore, name)

        def note(*arguments: Any) -> Any:
            threads.append(threading.current_thread())
            return method(*arguments)

        monkeypatch.setattr(ArrayStore, name, note)

    for name in ("release", "release_owner", "open", "_end_fetch"):
        noted(name)
    async with array_service() as service:
        reference = service.keep(10)
        assert (await service.calls.fetch(reference)).failure is None
        await service.calls.release([new_id() for _ in range(20_000)], instance=reference["instance"])
        await service.calls.release(owner="me")
        await service.until(lambda: len(threads) >= 4)
    assert threading.main_thread() not in threads


async def test_a_lease_that_is_over_frees_what_nobody_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "EXPIRE_SECONDS", 0.01)
    clock = FakeClock()
    store = ArrayStore(ArrayLimits(2**30, lease_seconds=60.0), clock=clock)
    async with array_service(store=store) as service:
        orphan, wanted = service.keep(10), service.keep(10)
        clock.advance(59.0)
        assert (await service.calls.fetch(wanted)).failure is None
        clock.advance(2.0)
        await service.until(lambda: store.stats().expired_episodes == 1)
        assert (await service.calls.fetch(wanted)).failure is None
        failure = (await service.calls.fetch(orphan)).failure
        assert failure is not None
        assert failure.reason == "ARRAYS_NOT_FOUND"
        assert "expired" in failure.message


async def test_one_store_that_fails_to_expire_is_said_and_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "EXPIRE_SECONDS", 0.01)
    calls = 0

    def failing(_: ArrayStore) -> int:
        nonlocal calls
        calls += 1
        raise RuntimeError("no clock")

    monkeypatch.setattr(ArrayStore, "expire", failing)
    async with array_service() as service:
        await service.until(lambda: calls >= 2)
    assert any("could not be looked at" in record.message for record in caplog.records)


async def test_a_worker_that_can_start_no_threads_says_so_and_serves_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    keeper = ArrayKeeper()
    home, hook = Home(new_id(), "127.0.0.1:1"), None
    arrays = ArrayServing(home, ArrayLimits(2**20), lambda: hook)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            arrays.adopt(keeper)
    assert not arrays.offered
    assert arrays.stats() == []
    arrays.adopt(keeper)
    assert arrays.offered
    assert keeper.array_store.home == home
    await arrays.close()


# Processes.

KEEPER = ("--env", "synthetic", "--drain-seconds", "5")
TASK = {"turns": 2, "tokens_per_turn": 20_000, "layers": 48, "top_k": 8}


async def one_kept(subject: WorkerProcess) -> Reference:
    [reference] = references(await subject.client.run(TASK))
    return reference


def calls_of(subject: WorkerProcess) -> tuple[grpc.aio.Channel, ArrayCalls]:
    channel = grpc.aio.insecure_channel(subject.server.address, options=NARROW)
    return channel, ArrayCalls(channel)


async def test_a_worker_that_stops_serves_on_until_the_last_release_and_then_leaves_at_once(
    tmp_path: Path,
) -> None:
    limits = ("--linger-seconds", "600", "--late-cancel-seconds", "0.1")
    async with worker_process(tmp_path, *KEEPER, *limits, hook="array-keeper") as subject:
        references = [await one_kept(subject) for _ in range(2)]
        channel, calls = calls_of(subject)
        async with channel:
            subject.signal()
            await subject.until_draining()
            for reference in references:
                fetched = await calls.fetch(reference)
                assert fetched.arrays["routed_experts"].shape == (40_000, 48, 8)
                answer = await calls.release([reference["key"]], instance=reference["instance"])
                assert isinstance(answer, tuple)
                assert answer[:2] == (1, 0)
            assert await subject.exit_code() == 0
    assert subject.logged("stopped, nothing was lost")


async def test_a_worker_whose_arrays_nobody_releases_leaves_with_exit_code_4(tmp_path: Path) -> None:
    limits = ("--linger-seconds", "0.5", "--late-cancel-seconds", "0.1")
    async with worker_process(tmp_path, *KEEPER, *limits, hook="env_worker:array_keeper") as subject:
        reference = await one_kept(subject)
        channel, calls = calls_of(subject)
        async with channel:
            call = calls.open(reference)
            await call.read()
            subject.signal()
            assert await subject.exit_code() == 4
            failure = await read_on_from_the_middle(call)
            assert failure in ("UNAVAILABLE", "CANCELLED")
    assert subject.logged("reason=ARRAYS_LOST", "1 episodes")


async def test_a_worker_that_is_killed_in_mid_fetch_is_unavailable_at_once(tmp_path: Path) -> None:
    async with worker_process(tmp_path, *KEEPER, hook="array-keeper") as subject:
        reference = await one_kept(subject)
        channel, calls = calls_of(subject)
        async with channel:
            call = calls.open(reference)
            await call.read()
            subject.signal(signal.SIGKILL)
            async with asyncio.timeout(SECONDS):
                assert await read_on_from_the_middle(call) == "UNAVAILABLE"
            assert await subject.exit_code() == -signal.SIGKILL


async def read_on_from_the_middle(call: Any) -> str:
    """The code with which a fetch ends whose descriptor was read."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return failure_of(error).code
    code = await call.code()
    return str(code.name)

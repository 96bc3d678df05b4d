"""ArrayClient: the loop only waits, and a cancelled task ends its fetch."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from env_client import (
    ArrayClient,
    ArraysNotFoundError,
    EnvError,
    FetchCancelledError,
    FetchDeadlineError,
    InvalidRequestError,
)
from env_client.training_arrays.bounds import CallBounds
from env_client.training_arrays.reference import ArrayReference
from tests.helpers.clock import FakeClock
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach, Wait

if TYPE_CHECKING:
    from env_client.training_arrays.reference import Reference
    from tests.helpers.scripted_arrays import ScriptedArrays

SECONDS = 20.0
GONE = End(grpc.StatusCode.NOT_FOUND, "ARRAYS_NOT_FOUND")


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, SECONDS)


async def no_more_fetches(service: ScriptedArrays) -> None:
    await asyncio.to_thread(service.until, lambda: service.open_fetches == 0)


def fetching_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("envtrio-fetch")]


async def test_a_fetch_with_progress_on_the_callers_loop(service: ScriptedArrays) -> None:
    branch = service.branch()
    service.on_fetch(*branch.answer())
    told: list[tuple[int, int, threading.Thread]] = []
    async with ArrayClient() as client:
        found = await client.fetch(
            branch.reference(), on_progress=lambda *now: told.append((*now, threading.current_thread()))
        )
    for name, array in branch.arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    size = branch.descriptor().body_bytes
    assert told[-1] == (size, size, threading.current_thread())
    assert fetching_threads() == []


async def test_a_cancelled_task_ends_its_call_and_its_thread(service: ScriptedArrays) -> None:
    branch = service.branch()
    streaming = threading.Event()
    out = {"routed_experts": np.zeros((6, 2, 4), np.uint16)}
    service.on_fetch(*branch.answer()[:3], Reach(streaming), Hang())
    async with ArrayClient(concurrency=1) as client:
        task = asyncio.create_task(client.fetch(branch.reference(), out=out))
        await reached(streaming)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, SECONDS)
        await no_more_fetches(service)
        service.on_fetch(*branch.answer())  # The thread is free for the next.
        await client.fetch(branch.reference())


async def test_a_cancelled_task_that_waits_for_its_turn_sends_nothing(service: ScriptedArrays) -> None:
    branch = service.branch()
    hanging, go = threading.Event(), threading.Event()
    service.on_fetch(Reach(hanging), Wait(go), *branch.answer())
    async with ArrayClient(concurrency=1) as client:
        first = asyncio.create_task(client.fetch(branch.reference()))
        await reached(hanging)
        second = asyncio.create_task(client.fetch(branch.reference()))
        with pytest.raises(FetchDeadlineError, match="did not even begin"):
            await client.fetch(branch.reference(), timeout=0.1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        go.set()
        await first
    assert len(service.fetches) == 1


async def test_the_timeout_of_asyncio_ends_it_as_well(service: ScriptedArrays) -> None:
    service.on_fetch(Hang())
    async with ArrayClient() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.fetch(service.branch().reference())
        await no_more_fetches(service)


async def test_many_and_the_first_error(service: ScriptedArrays) -> None:
    branch = service.branch()
    async with ArrayClient(concurrency=2) as client:
        for _ in range(3):
            service.on_fetch(*branch.answer())
        told: list[tuple[int, int]] = []
        found = await client.fetch_many([branch.reference()] * 3, on_progress=lambda *now: told.append(now))
        size = 3 * branch.descriptor().body_bytes
        assert told[-1] == (size, size)
        assert [list(arrays) for arrays in found] == [list(branch.arrays)] * 3
        assert await client.fetch_many([]) == []
        hanging = threading.Event()
        service.on_fetch(Reach(hanging), Hang())
        service.on_fetch(Wait(hanging), GONE)
        with pytest.raises(ArraysNotFoundError):
            await client.fetch_many([branch.reference()] * 9)
    assert len(service.fetches) == 5
    assert service.most_open_fetches == 2


async def test_what_progress_raises_ends_the_call(service: ScriptedArrays) -> None:
    branch = service.branch()

    def raises(done: int, total: int) -> None:
        raise KeyError(f"{done} of {total}")

    service.on_fetch(*branch.answer())
    async with ArrayClient() as client:
        with pytest.raises(KeyError):
            await client.fetch(branch.reference(), on_progress=raises)


async def test_closing_ends_what_is_under_way(service: ScriptedArrays) -> None:
    branch = service.branch()
    hanging = threading.Event()
    service.on_fetch(Reach(hanging), Hang())
    client = ArrayClient(concurrency=1)
    tasks = [asyncio.create_task(client.fetch(branch.reference())) for _ in range(2)]
    await reached(hanging)
    await client.close()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in ended] == [FetchCancelledError] * 2
    with pytest.raises(RuntimeError, match="closed"):
        await client.fetch(branch.reference())
    await client.close()


async def test_releases(service: ScriptedArrays) -> None:
    reference = service.branch().reference()
    async with ArrayClient() as client:
        assert await client.release(reference, reference) == 1
        assert await client.release() == 0
        await client.release_owner(service.address, "me")
        async with client.releasing([reference]):
            assert len(service.releases) == 2
        assert len(service.releases) == 3
        with pytest.raises(KeyError):
            async with client.releasing([reference]):
                raise KeyError
        with pytest.raises(InvalidRequestError):
            async with client.releasing([{}]):
                pytest.fail("the block was entered")
        service.on_release(*[End(grpc.StatusCode.INTERNAL, "INTERNAL")] * 2)
        with pytest.raises(KeyError):
            async with client.releasing([reference]):
                raise KeyError
        with pytest.raises(EnvError, match="INTERNAL"):
            async with client.releasing([reference]):
                pass
    assert len(service.releases) == 6


async def test_a_cancelled_block_releases_as_well(service: ScriptedArrays) -> None:
    reference = service.branch().reference()
    entered = asyncio.Event()

    async def held(client: ArrayClient) -> None:
        async with client.releasing([reference]):
            entered.set()
            await asyncio.Event().wait()

    async with ArrayClient() as client:
        task = asyncio.create_task(held(client))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(service.releases) == 1


async def test_however_often_it_is_cancelled_nothing_is_written_after_its_end(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go = threading.Event(), threading.Event()
    written: list[bool] = []

    def copying(*_args: object) -> None:
        """A fetch that copies what was mapped, and does not look up meanwhile."""
        began.set()
        assert go.wait(SECONDS)
        written.append(True)
        raise FetchCancelledError("given up")

    async with ArrayClient() as client:
        monkeypatch.setattr(client._core._fetcher, "fetch", copying)
        task = asyncio.create_task(client.fetch(service.branch().reference()))
        await reached(began)
        for _ in range(3):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert written == [True]


async def test_closing_ends_calls_with_more_jobs_than_threads(service: ScriptedArrays) -> None:
    branch = service.branch()
    hanging = threading.Event()
    service.on_fetch(Reach(hanging), Hang())
    client = ArrayClient(concurrency=1)
    task = asyncio.create_task(client.fetch_many([branch.reference()] * 3))
    await reached(hanging)
    await client.close()
    with pytest.raises(FetchCancelledError):
        await asyncio.wait_for(task, SECONDS)


async def test_references_are_checked_once_and_not_on_the_loop(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    check = ArrayReference.of

    def noted(value: Reference) -> ArrayReference:
        threads.append(threading.current_thread())
        return check(value)

    monkeypatch.setattr(ArrayReference, "of", noted)
    branch = service.branch()
    references = [branch.reference(key=f"{number:032x}") for number in range(3)]
    for reference in references:
        service.on_fetch(*branch.answer(), key=reference["key"])
    async with ArrayClient() as client:
        async with client.releasing(references):
            assert len(await client.fetch_many(references)) == 3
        assert len(threads) == 6
        assert await client.release(*references) == 3
    assert len(threads) == 9
    assert threading.current_thread() not in threads


async def test_many_of_which_some_fail(service: ScriptedArrays) -> None:
    branch = service.branch()
    service.on_fetch(GONE)
    service.on_fetch(*branch.answer(), key="0" * 32)
    async with ArrayClient() as client:
        references = [branch.reference(), branch.reference(key="0" * 32)]
        found = await client.fetch_many(references, return_exceptions=True)
        assert [type(each) for each in found] == [ArraysNotFoundError, dict]
        one: list[Any] = [branch.reference(), "{}"]
        for wrong in one:
            with pytest.raises(InvalidRequestError, match=r"fetch\(reference\)"):
                await client.fetch_many(wrong)


async def test_a_release_has_its_time_from_when_it_has_a_thread(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("env_client.training_arrays.core._OTHER_THREADS", 1)
    monkeypatch.setattr(
        "env_client.training_arrays.core.CallBounds", lambda timeout: CallBounds(timeout, clock)
    )
    go, began = threading.Event(), threading.Event()
    async with ArrayClient() as client:

        def busy() -> None:
            began.set()
            assert go.wait(SECONDS)

        first = client._core.aside(busy)
        await reached(began)
        release = asyncio.create_task(client.release(service.branch().reference(), timeout=10.0))
        await asyncio.sleep(0)
        assert len(client._core._open) == 1
        clock.advance(11.0)
        go.set()
        assert await release == 1
        first.result(SECONDS)

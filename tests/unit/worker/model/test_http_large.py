"""Large answers: what they may take of the worker's memory and time."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from env_worker.model import body_budget, response
from env_worker.model.errors import EngineRefusedError, EngineUnreachableError, MalformedAnswerError
from env_worker.model.http import Connections
from env_worker.model.retry import TryFailedError
from tests.helpers.scripted_http import Hangs, ScriptedHttp, breaks_off, failure, post, raw, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

KIB = 1024
LARGE = json.dumps({"x": "y" * response.LARGE_BYTES}).encode()
BUDGET = 2 * len(LARGE)


@pytest.fixture
async def engines(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connections]:
    """Their budget has room for one large body and a half."""
    monkeypatch.setattr(body_budget, "FREE_BYTES", KIB)
    made = Connections(max_bodies_bytes=BUDGET)
    yield made
    assert made._budget.used == 0
    await made.close()


class Busy:
    """Takes all threads that decode."""

    def __init__(self, engines: Connections) -> None:
        self._end = threading.Event()
        self._jobs = [engines._threads.submit(self._end.wait) for _ in range(2)]

    def end(self) -> None:
        self._end.set()
        for job in self._jobs:
            job.result(10)


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


async def test_large_bodies_wait_for_each_other(engines: Connections) -> None:
    async with ScriptedHttp(always=raw(LARGE)) as server:
        answers = await asyncio.gather(*(post(engines, server) for _ in range(20)))
    assert all(len(answer["x"]) == response.LARGE_BYTES for answer in answers)


async def test_small_ones_do_not_wait(engines: Connections) -> None:
    holds = engines._budget.share()
    await holds.grow(BUDGET)
    async with ScriptedHttp(says({"ok": True})) as server:
        assert await post(engines, server) == {"ok": True}
    holds.give_back()


async def test_to_wait_takes_nothing_of_the_time_of_a_try(engines: Connections) -> None:
    seconds = 0.8
    loop = asyncio.get_running_loop()
    holds, busy = engines._budget.share(), Busy(engines)
    await holds.grow(BUDGET)
    async with ScriptedHttp(raw(LARGE)) as server:
        asking = asyncio.create_task(post(engines, server, timeout=seconds))
        loop.call_later(seconds * 1.2, holds.give_back)
        loop.call_later(seconds * 2.4, busy.end)
        assert len((await asking)["x"]) == response.LARGE_BYTES


async def test_after_its_wait_a_try_has_the_rest_of_its_time(engines: Connections) -> None:
    holds = engines._budget.share()
    await holds.grow(BUDGET)
    hangs = Hangs()

    async def in_two(request: web.Request) -> web.StreamResponse:
        streamed = web.StreamResponse()
        await streamed.prepare(request)
        await streamed.write(LARGE[: 64 * KIB])
        holds.give_back()
        return await hangs(request)

    async with ScriptedHttp(in_two) as server:
        with pytest.raises(TryFailedError, match=r"no whole answer in 0\.3 s") as raised:
            await post(engines, server, timeout=0.3)
        await asyncio.wait_for(hangs.left.wait(), 10)
    assert isinstance(raised.value.error, EngineUnreachableError)


async def test_what_fails_in_mid_body_gives_its_share_back(engines: Connections) -> None:
    failed = await failure(engines, breaks_off(LARGE[:-1], announced=len(LARGE)))
    assert isinstance(failed.error, EngineUnreachableError)
    assert engines._budget.used == 0


@pytest.mark.parametrize("stage", ["waiting", "queued"])
async def test_who_is_cancelled_gives_its_share_back(engines: Connections, stage: str) -> None:
    busy = Busy(engines)
    holds = engines._budget.share()
    if stage == "waiting":
        await holds.grow(BUDGET)
    async with ScriptedHttp(raw(LARGE)) as server:
        asking = asyncio.create_task(post(engines, server))
        if stage == "waiting":
            await until(lambda: bool(engines._budget._waiting))
        else:
            await until(lambda: bool(engines._threads._work_queue.qsize()))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    holds.give_back()
    busy.end()
    await until(lambda: not engines._budget.used)


async def test_the_number_of_lists_and_objects_is_bounded(
    engines: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "MAX_CONTAINERS", 100_000)
    monkeypatch.setattr(response, "_COUNTED_BYTES", 1000)
    failed = await failure(engines, raw(b'{"a":[' + b"[],{}," * 50_000 + b"1]}"))
    assert isinstance(failed.error, MalformedAnswerError)
    assert not failed.error.retryable
    assert "with 100002 lists and objects, the limit is 100000; ask for fewer" in str(failed.error)
    async with ScriptedHttp(raw(b'{"a":[' + b"[],{}," * 49_999 + b"1]}")) as server:
        assert len((await post(engines, server))["a"]) == 99_999


@pytest.mark.parametrize("coding", ["gzip, gzip", "br", "zstd"])
async def test_what_may_unpack_to_any_size_is_not_unpacked(engines: Connections, coding: str) -> None:
    failed = await failure(engines, says({}, headers={"Content-Encoding": coding}))
    assert isinstance(failed.error, MalformedAnswerError)
    assert f"with the content encoding {coding}, but asked for none" in str(failed.error)
    failed = await failure(engines, says({"error": "?"}, status=500, headers={"Content-Encoding": coding}))
    assert isinstance(failed.error, EngineRefusedError)
    assert failed.error.retryable

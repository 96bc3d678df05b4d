"""Large answers: what they may take of the worker's memory and time."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from env_worker.model import body_budget, json_pieces, response
from env_worker.model.errors import EngineRefusedError, EngineUnreachableError, MalformedAnswerError
from env_worker.model.http import Connections
from env_worker.model.retry import TryFailedError
from env_worker.model.unpacking import Unpacker
from tests.helpers.scripted_http import Hangs, Script, ScriptedHttp, breaks_off, failure, post, raw, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

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


def packed(data: bytes, coding: str) -> bytes:
    """As a server packs it; "bare" is deflated without zlib's header, as some do."""
    if coding == "gzip":
        return gzip.compress(data)
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS if coding == "bare" else zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def sends(data: bytes, coding: str, *, step: int | None = None, status: int = 200) -> Script:
    """Answers with packed bytes, so many at a time."""

    async def script(request: web.Request) -> web.StreamResponse:
        streamed = web.StreamResponse(status=status, headers={"Content-Encoding": coding})
        await streamed.prepare(request)
        for at in range(0, len(data), step or len(data)):
            await streamed.write(data[at : at + (step or len(data))])
        return streamed

    return script


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "bare"])
async def test_what_is_packed_arrives_whole(engines: Connections, coding: str, step: int | None) -> None:
    told = {"x": [str(number) for number in range(10_000 if step is None else 10)]}
    data = packed(json.dumps(told).encode(), coding.removeprefix("x-"))
    script = sends(data, "deflate" if coding == "bare" else coding, step=step)
    async with ScriptedHttp(script) as server:
        assert await post(engines, server) == told


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_what_is_packed_and_breaks_off_may_be_asked_for_again(
    engines: Connections, coding: str
) -> None:
    data = packed(b'{"x": 1}' + bytes(range(256)) * 100, coding)
    for sent, why in (
        (data[:-20], f"EOFError no end of {coding}"),
        (b"\xff" * 40, f"with the content encoding {coding}, which is broken behind 0 unpacked bytes: "),
    ):
        failed = await failure(engines, sends(sent, coding))
        assert isinstance(failed.error, EngineUnreachableError)
        assert failed.error.retryable
        assert why in str(failed.error)


@pytest.mark.parametrize("step", [None, 1])
async def test_a_body_of_several_members_is_one_answer(engines: Connections, step: int | None) -> None:
    data = gzip.compress(b'{"a": 1, ') + gzip.compress(b'"b": 2}')
    async with ScriptedHttp(sends(data, "gzip", step=step)) as server:
        assert await post(engines, server) == {"a": 1, "b": 2}


async def test_broken_packing_is_told_as_such(engines: Connections) -> None:
    failed = await failure(engines, says({"a": 1}, headers={"Content-Encoding": "gzip"}))
    assert failed.error.retryable
    assert (
        "with the content encoding gzip, which is broken behind 0 unpacked bytes: Error -3 while "
        "decompressing data: incorrect header check; let the engine, or the proxy before it, send answers as "
    ) in str(failed.error)


async def test_no_more_is_unpacked_than_there_is_room_for(engines: Connections) -> None:
    """However little it was packed: the rest waits until others are done."""
    holds = engines._budget.share()
    await holds.grow(BUDGET)
    size = 20 << 20
    data = gzip.compress(b'{"x":"' + b"a" * size + b'"}')
    assert len(data) < 64 * KIB
    asked: list[int] = []
    grow = body_budget.Share.grow

    async def noted(self: body_budget.Share, size: int) -> None:
        asked.append(size)
        await grow(self, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_budget.Share, "grow", noted)
        async with ScriptedHttp(sends(data, "gzip")) as server:
            asking = asyncio.create_task(post(engines, server))
            await until(lambda: bool(engines._budget._waiting))
            assert asked[0] < 200 * KIB
            holds.give_back()
            assert len((await asking)["x"]) == size
    assert all(after < 2 * before for before, after in pairwise(asked))


async def test_an_error_that_was_packed_is_unpacked_as_far_as_it_is_told(engines: Connections) -> None:
    unpacked: Counter[str] = Counter()
    original = Unpacker.pieces

    def counted(self: Unpacker, data: bytes) -> Iterator[bytes]:
        for piece in original(self, data):
            unpacked["bytes"] += len(piece)
            yield piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unpacker, "pieces", counted)
        failed = await failure(engines, sends(gzip.compress(b"[" + b"[]," * (8 << 20)), "gzip", status=503))
    assert failed.error.status == 503
    assert "[[],[]," in str(failed.error)
    assert unpacked["bytes"] <= 192 * KIB
    words = gzip.compress(json.dumps({"error": {"message": "slow down"}}).encode())
    failed = await failure(engines, sends(words, "gzip", status=429))
    assert str(failed.error).endswith("status 429: slow down")


async def test_json_that_is_built_as_no_answer_is_is_not_asked_for_again(
    engines: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_pieces, "MOST_KEYS", 1000)
    blank = b" " * response.LARGE_BYTES
    for body, why in (
        (b'{"a":1,' + b'"k":1,' * 1000 + blank + b'"z":0}', "no more than 1000 keys in an object"),
        (b'{"a":' + b"[" * 300 + blank + b"]" * 300 + b"}", "no more than 200 large lists"),
        (b'{"a":' + b"1" * (2 << 20) + b"}", "expected a number of fewer than 1048576 bytes"),
    ):
        failed = await failure(engines, raw(body))
        assert isinstance(failed.error, MalformedAnswerError)
        assert not failed.error.retryable
        assert why in str(failed.error)

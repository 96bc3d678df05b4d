"""What a run's port promises to either side."""

from __future__ import annotations

import asyncio

import pytest

from env_worker.port import PortBrokenError, RunPort


async def sent(port: RunPort[str], data: bytes) -> asyncio.Task[None]:
    task = asyncio.create_task(port.send(data))
    assert await port.take() == data
    return task


async def test_send_returns_when_the_message_was_written_and_not_before() -> None:
    port: RunPort[str] = RunPort()
    task = await sent(port, b"a")
    assert not task.done()
    assert await port.take() == b"a", "the same message until it was written"
    port.written()
    await task


async def test_one_message_is_on_its_way_at_most() -> None:
    port: RunPort[str] = RunPort()
    task = await sent(port, b"a")
    with pytest.raises(RuntimeError, match="await its send first"):
        await port.send(b"b")
    port.written()
    await task


async def test_an_end_breaks_the_message_on_its_way_and_every_later_one() -> None:
    port: RunPort[str] = RunPort()
    task = await sent(port, b"a")
    port.end("lost")
    with pytest.raises(PortBrokenError):
        await task
    with pytest.raises(PortBrokenError):
        await port.send(b"b")
    port.written()  # the handler was in its write when the run ended
    assert await port.take() is None
    assert port.ending == "lost"


async def test_the_first_end_counts() -> None:
    port: RunPort[str] = RunPort()
    port.end("first")
    port.end("second")
    port.end()
    assert port.ending == "first"


async def test_an_end_wakes_the_handler_wherever_it_waits() -> None:
    port: RunPort[str] = RunPort()
    waits = [asyncio.create_task(port.wait_open()), asyncio.create_task(port.take())]
    await asyncio.sleep(0)
    port.end("over")
    assert await asyncio.gather(*waits) == [False, None]


async def test_open_is_told_once_the_run_was_admitted() -> None:
    port: RunPort[str] = RunPort()
    wait = asyncio.create_task(port.wait_open())
    await asyncio.sleep(0)
    assert not wait.done()
    port.open()
    assert await wait


async def test_the_reply_is_committed_by_written_at_once_and_then_the_end_cannot_change() -> None:
    port: RunPort[str] = RunPort()
    committed: list[bool] = []

    def commit() -> bool:
        committed.append(True)
        return True

    task = asyncio.create_task(port.send_reply(b"reply", commit))
    assert await port.take() == b"reply"
    assert not committed
    port.written()
    assert committed == [True]
    port.end("too late")
    assert (port.ended, port.ending) == (True, None)
    await task


async def test_a_reply_whose_run_ended_while_it_was_written_is_not_committed() -> None:
    port: RunPort[str] = RunPort()
    committed: list[bool] = []

    def commit() -> bool:
        committed.append(True)
        return True

    task = asyncio.create_task(port.send_reply(b"reply", commit))
    assert await port.take() == b"reply"
    port.end("cancelled")
    port.written()
    assert not committed
    assert port.ending == "cancelled"
    with pytest.raises(PortBrokenError):
        await task


async def test_a_cancelled_send_leaves_nothing_behind() -> None:
    port: RunPort[str] = RunPort()
    task = await sent(port, b"a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    port.written()
    following = await sent(port, b"b")
    port.written()
    await following


async def test_a_handler_that_is_stuck_in_a_write_is_told_of_the_end_once() -> None:
    port: RunPort[str] = RunPort()
    told: list[str | None] = []
    port.on_end = lambda: told.append(port.ending)
    task = await sent(port, b"a")
    port.end("cancelled")
    port.end("again")
    assert told == ["cancelled"]
    with pytest.raises(PortBrokenError):
        await task


async def test_a_handler_of_many_is_called_for_each_news_and_looks_for_itself() -> None:
    port: RunPort[str] = RunPort()
    news: list[tuple[bool, bytes | None, bool]] = []
    port.on_news = lambda: news.append((port.opened, port.waiting, port.ended))
    port.open()
    task = asyncio.create_task(port.send(b"a"))
    await asyncio.sleep(0)
    assert port.waiting == b"a"
    port.written()
    assert port.waiting is None
    await task
    reply = asyncio.create_task(port.send_reply(b"reply", lambda: True))
    await asyncio.sleep(0)
    port.end("cancelled")
    assert news == [(True, None, False), (True, b"a", False), (True, b"reply", False), (True, None, True)]
    with pytest.raises(PortBrokenError):
        await reply

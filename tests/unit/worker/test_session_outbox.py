"""What a session's outbox makes of runs' messages and other frames, without a network."""

from __future__ import annotations

import asyncio

import pytest

from env_worker.port import PortBrokenError
from env_worker.session_outbox import MAX_FRAMES, MAX_WAITING_BYTES, MAX_WAITING_FRAMES, TARGET_BYTES
from tests.helpers.outbox_bench import CANCELLED, Bench, answers


async def test_what_is_due_leaves_together_in_the_order_in_which_it_became_due() -> None:
    bench = Bench()
    for number in (0, 3, 300, 2**40):
        bench.run(number)
    assert bench.message() == []
    bench.ports[300].open()
    bench.outbox.put(answers(2))
    bench.ports[0].open()
    tasks = [await bench.send(300, b"x" * 200), await bench.send(0, b"")]
    bench.ports[3].end(CANCELLED)
    bench.ports[2**40].open()
    tasks.append(await bench.send(2**40, b"y" * 20_000))
    assert bench.due == 8
    assert bench.message() == [
        ("admitted", 300), ("answers", 2), ("admitted", 0), ("data", 300, b"x" * 200), ("data", 0, b""),
        ("end", 3, 1), ("admitted", 2**40), ("data", 2**40, b"y" * 20_000),
    ]  # fmt: skip
    assert not any(task.done() for task in tasks)
    bench.outbox.written()
    await asyncio.gather(*tasks)
    assert bench.message() == []


def test_nothing_is_joined_for_a_client_that_may_not_know_how() -> None:
    bench = Bench()
    bench.outbox.joins = False
    for count in (3, 1, 2):
        bench.outbox.put(answers(count))
    assert bench.message() == [("answers", 3)]
    bench.outbox.joins = True
    assert bench.message() == [("answers", 1), ("answers", 2)]


async def test_a_reply_is_settled_when_it_was_written_and_its_end_comes_in_a_later_message() -> None:
    bench = Bench()
    run = bench.run(1)
    bench.ports[1].open()
    task = await bench.reply(1, b"reply")
    bench.outbox.put(answers(1))
    assert bench.message() == [("admitted", 1), ("data", 1, b"reply"), ("answers", 1)]
    assert (bench.committed, bench.ends) == (set(), {})
    bench.outbox.written()
    assert (bench.committed, bench.ends) == ({1}, {1: None})
    assert bench.message() == [("end", 1, 0)]
    await task
    assert (run.port, run.run) == (None, None), "nothing of it is held on to"
    assert not hasattr(bench.ports[1].on_news, "__self__"), "nor does its port, which a keep may hold on to"
    bench.ports[1].end(CANCELLED)
    run.credit(5)
    run.end(CANCELLED)
    assert bench.message() == []


async def test_an_end_while_the_reply_is_written_is_told_and_nothing_is_committed() -> None:
    bench = Bench()
    bench.run(1)
    bench.ports[1].open()
    task = await bench.reply(1, b"reply")
    bench.message()
    bench.ports[1].end(CANCELLED)
    bench.outbox.written()
    assert not bench.committed
    assert bench.message() == [("end", 1, 1)]
    with pytest.raises(PortBrokenError):
        await task


async def test_what_waits_of_a_run_that_has_ended_is_dropped() -> None:
    bench = Bench()
    bench.run(1)
    bench.run(2)
    tasks = [await bench.send(1, b"a"), await bench.send(2, b"b")]
    bench.ports[1].end(CANCELLED)
    assert bench.message() == [("data", 2, b"b"), ("end", 1, 1)]
    bench.outbox.written()
    assert isinstance((await asyncio.gather(*tasks, return_exceptions=True))[0], PortBrokenError)


async def test_a_send_that_was_cancelled_leaves_room_for_the_next() -> None:
    bench = Bench()
    bench.run(1)
    task = await bench.send(1, b"a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bench.message() == []
    following = await bench.send(1, b"b")
    assert bench.message() == [("data", 1, b"b")]
    bench.outbox.written()
    await following


async def test_data_waits_for_credit_and_holds_up_nothing() -> None:
    bench = Bench()
    run = bench.run(1, credit=0)
    bench.run(2, credit=1)
    bench.ports[1].open()
    tasks = [await bench.send(1, b"a" * 10), await bench.send(2, b"b" * 10)]
    assert bench.message() == [("admitted", 1), ("data", 2, b"b" * 10)]
    run.credit(1)
    run.credit(2)
    bench.outbox.written()
    tasks.append(await bench.send(2, b"c"))
    assert bench.message() == [("data", 1, b"a" * 10)], "the other one's credit is used up"
    run.credit(7)
    bench.outbox.written()
    tasks.append(await bench.send(1, b"d"))
    assert bench.message() == [], "it is used up to the last byte"
    run.credit(1)
    assert bench.message() == [("data", 1, b"d")]
    bench.ports[2].end(CANCELLED)
    bench.outbox.written()
    assert bench.message() == [("end", 2, 1)], "an end needs no credit"
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_messages_are_bounded_in_bytes_and_frames_and_one_larger_frame_goes_alone() -> None:
    bench = Bench()
    half = TARGET_BYTES // 2
    tasks = []
    for number, size in enumerate((half, half - 100, 200, 3 * TARGET_BYTES, 5)):
        bench.run(number)
        tasks.append(await bench.send(number, bytes(size)))
    sizes = []
    while frames := bench.message():
        sizes.append([len(data) for _, _, data in frames])
        bench.outbox.written()
    assert sizes == [[half, half - 100], [200], [3 * TARGET_BYTES], [5]]
    await asyncio.gather(*tasks)
    for _ in range(MAX_FRAMES + 1):
        bench.outbox.put(answers(0))
    assert [len(bench.message()) for _ in range(3)] == [MAX_FRAMES, 1, 0]


async def test_it_is_full_while_too_much_waits_but_not_for_what_waits_for_credit() -> None:
    bench, frame = Bench(), answers(0)
    for number in range(100):
        bench.run(number, credit=0)
    tasks = [await bench.send(number, bytes(MAX_WAITING_BYTES // 50)) for number in range(100)]
    for _ in range(MAX_WAITING_FRAMES):
        bench.outbox.put(frame)
    assert not bench.outbox.full
    bench.outbox.put(frame)
    assert bench.outbox.full
    bench.message()
    assert not bench.outbox.full
    while bench.message():
        bench.outbox.written()
    large = answers(1024)
    for _ in range(MAX_WAITING_BYTES // len(large)):
        bench.outbox.put(large)
    assert not bench.outbox.full
    bench.outbox.put(large)
    assert bench.outbox.full
    bench.message()
    assert not bench.outbox.full
    for port in bench.ports.values():
        port.end(CANCELLED)
    await asyncio.gather(*tasks, return_exceptions=True)

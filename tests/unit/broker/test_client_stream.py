"""When a stream of a client's session has told all, and when nothing more is read from it."""

from __future__ import annotations

import asyncio

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker import client_stream
from env_broker.client_stream import ClientStream
from env_broker.route import ConfirmOutcome
from env_broker.status import Refusal
from env_broker.worker_session import MAX_FRAME_IDS

RUN, OTHER, SESSION = "0" * 32, "1" * 32, "2" * 32
STOPS = Refusal("DRAINING", "the test says so")


def answers(message: bytes | None) -> list[str]:
    """The runs whose confirmation a message answers."""
    told = pb.SessionResponse.FromString(message or b"")
    assert not told.more, "a client that opens no runs may be older than that"
    return [answer.request_id for answer in told.confirm_answers.answers]


async def asleep(stream: ClientStream) -> asyncio.Task[bytes | None]:
    """One who waits for what there is to tell, of which there is nothing yet."""
    waiting = asyncio.create_task(stream.next_message())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_answers_go_in_frames_and_a_goodbye_waits_for_the_last() -> None:
    stream = ClientStream(SESSION, 1)
    ids = [f"{number:032x}" for number in range(MAX_FRAME_IDS + 2)]
    stream.pending.update(ids)
    stream.say_goodbye()
    for request_id in ids[:-1]:
        stream.answered(request_id, ConfirmOutcome.WORKER_LOST)
    assert [len(answers(await stream.next_message())) for _ in range(2)] == [MAX_FRAME_IDS, 1]
    waiting = await asleep(stream)
    stream.unanswered(ids[-1])
    assert await waiting is None
    assert SESSION not in repr(stream)


async def test_it_takes_so_many_confirmations_and_no_more() -> None:
    stream = ClientStream(SESSION, 1)
    for number in range(client_stream.MAX_UNANSWERED):
        await asyncio.wait_for(stream.room(), 1)
        stream.pending.add(f"{number:032x}")
    waits = asyncio.create_task(stream.room())
    await asyncio.sleep(0)
    assert not waits.done()
    stream.answered(f"{0:032x}", ConfirmOutcome.CONFIRMED)
    await asyncio.sleep(0)
    assert not waits.done(), "an answer that was not taken yet has its room"
    assert len(answers(await stream.next_message())) == 1
    await asyncio.wait_for(waits, 1)
    stream.pending.add(f"{0:032x}")
    waits = asyncio.create_task(stream.room())
    await asyncio.sleep(0)
    stream.unanswered(f"{1:032x}")
    await asyncio.wait_for(waits, 1)


async def test_it_is_finished_when_its_runs_were_told_their_end() -> None:
    stream = ClientStream(SESSION, 1)
    outlet = stream.outbox.outlet(1, 0)
    stream.finish(STOPS)
    waiting = await asleep(stream)
    outlet.end(1)
    assert pb.SessionResponse.FromString(await waiting or b"").end_run.code == 1
    with pytest.raises(Refusal) as error:
        await stream.next_message()
    assert error.value is STOPS


async def test_it_is_ended_once() -> None:
    stream = ClientStream(SESSION, 1)
    stream.end(STOPS)
    stream.end(Refusal("DRAINING", "another one"))
    with pytest.raises(Refusal) as error:
        await stream.over
    assert error.value is STOPS


@pytest.mark.parametrize("what", ["pending", "answers", "frames"])
async def test_it_is_full_while_too_much_is_under_way(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_stream, "MAX_UNANSWERED", 2)
    monkeypatch.setattr(client_stream, "MAX_WAITING", 1)
    stream = ClientStream(SESSION, 1)
    for number, run in enumerate((RUN, OTHER)):
        assert not stream.full
        if what == "frames":
            stream.outbox.outlet(number, 0).admit()
        else:
            stream.pending.add(run)
            if what == "answers":
                stream.answered(run, ConfirmOutcome.CONFIRMED)
    assert stream.full
    waiting = asyncio.create_task(stream.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    if what == "pending":
        stream.unanswered(RUN)
    else:
        await stream.next_message()
    await asyncio.wait_for(waiting, 10)
    assert not stream.full

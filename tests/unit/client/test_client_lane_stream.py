"""The stream of a lane by a call that does as the test says: in which moment what happens to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_client import lane_stream
from env_client.confirmations import Verdict
from env_client.statuses import rpc_error
from tests.helpers.lane_owner import OPENED, LaneOwner, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_client.lane_run import LaneRun

GONE = rpc_error(grpc.StatusCode.UNAVAILABLE.value[0], "gone", b"")


@pytest.fixture
async def owner() -> AsyncIterator[LaneOwner]:
    made = LaneOwner()
    yield made
    made.call.cancel()
    await made.stream.join()
    made.side.close()


async def status_of(run: LaneRun) -> str:
    async with asyncio.timeout(20):
        with pytest.raises(grpc.RpcError) as caught:
            await run.read()
    return str(caught.value)


# Confirmations


async def test_a_confirmation_that_nobody_wants_any_more_does_not_leave(owner: LaneOwner) -> None:
    await owner.stalled()
    answers = {name: owner.stream.confirm(name) for name in ("a", "b", "c")}
    owner.stream.forget("b")
    owner.call.reads.set()
    await settled()
    assert [list(message.confirm.request_ids) for message in owner.call.written[2:]] == [["a", "c"]]
    owner.stream.forget("a")  # That one has left: what is said of it is heard by nobody.
    answer = pb.ConfirmAnswers(
        answers=[pb.ConfirmAnswer(request_id=name, outcome=pb.CONFIRM_OUTCOME_CONFIRMED) for name in answers]
    )
    owner.call.say(pb.SessionResponse(confirm_answers=answer))
    assert await answers["c"] is Verdict.CONFIRMED
    assert not answers["a"].done()
    assert not answers["b"].done()


async def test_where_all_are_unwanted_nothing_leaves(owner: LaneOwner) -> None:
    await owner.stalled()
    for name in ("a", "b"):
        owner.stream.confirm(name)
        owner.stream.forget(name)
    owner.call.reads.set()
    await settled()
    assert owner.call.kinds() == ["open", "open_run"]


# Runs that were never sent


@pytest.mark.parametrize("end", [GONE, RuntimeError("a bug")], ids=["broken", "cannot be read"])
async def test_when_it_breaks_what_was_never_sent_is_handed_on(owner: LaneOwner, end: Exception) -> None:
    await owner.opened()
    sent = [owner.carry("sent")]
    await settled()
    owner.call.reads.clear()
    sent.append(owner.carry("being sent"))
    await settled()
    owner.carry("never sent")
    owner.carry("never sent either")
    owner.carry("left").cancel()
    owner.call.say(end)
    await owner.until_over()
    assert owner.handed_on == ["never sent", "never sent either"]
    for run in sent:
        assert "the stream that carried this run broke" in await status_of(run)


@pytest.mark.parametrize("opened", [True, False])
async def test_nothing_is_handed_on_by_who_is_closed(owner: LaneOwner, opened: bool) -> None:
    if opened:
        await owner.stalled()
    run = owner.carry("never sent")
    parting = asyncio.ensure_future(owner.stream.part(20))
    await settled()
    owner.call.say(GONE)
    await parting
    await owner.until_over()
    assert owner.handed_on == []
    assert "gone" in await status_of(run)


async def test_nothing_is_handed_on_as_the_loop_is_torn_down(owner: LaneOwner) -> None:
    await owner.stalled()
    run = owner.carry("never sent")
    task_named("envtrio-lane-reader").cancel()
    assert (await owner.until_over()).is_torn
    assert owner.handed_on == []
    assert "its task was cancelled" in await status_of(run)


# Its tasks


def task_named(name: str) -> asyncio.Task[Any]:
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
    return task


async def test_when_its_writer_is_cancelled_its_runs_end(owner: LaneOwner) -> None:
    await owner.opened()
    run = owner.carry("sent")
    await settled()
    task_named("envtrio-lane-writer").cancel()
    assert "its task was cancelled" in await status_of(run)
    assert (await owner.until_over()).is_torn


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (asyncio.InvalidStateError("over"), "nothing more can be sent in it"),
        (GONE, "nothing more can be sent in it"),
        (ValueError("a bug"), "it cannot be written: a bug"),
    ],
    ids=["over", "status", "bug"],
)
async def test_when_its_writer_ends_its_runs_end(owner: LaneOwner, error: Exception, why: str) -> None:
    await owner.opened()
    owner.call.breaks = error
    run = owner.carry("being sent")
    assert why in await status_of(run)
    assert why in (await owner.until_over()).why


async def test_what_ended_the_call_is_why_and_not_that_it_cannot_be_written(owner: LaneOwner) -> None:
    await owner.opened()
    owner.call.breaks = asyncio.InvalidStateError("over")
    run = owner.carry("being sent")
    owner.call.say(GONE)
    assert "gone" in await status_of(run)


async def test_a_writer_that_has_said_goodbye_may_end(owner: LaneOwner) -> None:
    await owner.opened()
    parting = asyncio.ensure_future(owner.stream.part(20))
    await settled()
    assert owner.call.kinds() == ["open", "goodbye"]
    assert not owner.end.done()
    owner.call.say(GONE)
    await parting


# Patience


class Late:
    """A loop's clock that can be put forward, as when the loop stood still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, self._late = asyncio.get_running_loop(), 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._late)

    def by(self, seconds: float) -> None:
        self._late += seconds


async def test_a_loop_that_stood_still_hears_what_was_said_in_time(
    owner: LaneOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(monkeypatch)
    owner.call.turns = 10
    run = owner.carry("first")
    await settled()
    owner.call.say(OPENED)
    late.by(60.0)
    await settled()
    assert owner.stream.carries
    assert not owner.end.done()
    assert owner.handed_on == []
    assert owner.call.kinds() == ["open", "open_run"]
    run.cancel()


async def test_a_server_that_does_not_open_it_is_given_up_all_the_same(
    owner: LaneOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_stream, "_MOMENT_SECONDS", 0.0)
    late = Late(monkeypatch)
    owner.carry("first")
    await settled()
    late.by(4.0)
    await settled()
    assert not owner.end.done()
    late.by(2.0)
    assert (await owner.until_over()).why == "the server did not open it within 5.0 s"
    assert owner.handed_on == ["first"]

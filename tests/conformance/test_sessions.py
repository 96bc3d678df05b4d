"""Runs in the stream of a session: its own promises, by their names in PROTOCOL.md.

That such runs are all that those of Run are says the rest of the suite. `Lane` watches the order of the
frames in all of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.history import EnvironmentEnded, History
from tests.helpers.lane_client import CAPABILITY
from tests.helpers.session_frames import SHORT, ends, frames, opening
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import MIB, StubClient

if TYPE_CHECKING:
    from tests.helpers.lane_run import LaneRun
    from tests.helpers.pools import Subject
    from tests.helpers.stub_client import OpenRun, Transport

FOREVER = {"script": [["trace"], ["say", 3], ["forever"]]}
UNOPENED = 2**63


@pytest.fixture
def transport() -> Transport:
    """By Run there is none of this."""
    return "session"


async def live(client: StubClient) -> OpenRun:
    """A run that has streamed something and will never end by itself."""
    run = client.start(FOREVER, environment="scripted")
    await run.next()
    return run


def lane_run(run: OpenRun) -> LaneRun:
    """The run as its lane sees it."""
    call: LaneRun = run.call
    return call


def adopt(client: StubClient, other: StubClient) -> None:
    """The oracle is to judge the other's runs too."""
    client.runs += other.runs
    client.asked += other.asked


async def test_the_capability_is_told_at_both_places(client: StubClient, by_hand: SessionStream) -> None:
    assert by_hand.opened is not None
    assert CAPABILITY in by_hand.opened.capabilities
    assert CAPABILITY in (await client.describe()).capabilities


# carried_alike


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_generation": 7},
        {"request_id": "no id"},
        {"environment": "none such"},
        {"session_id": "no id either"},
        {"task": "[]"},
        {"task": {"turns": -1}},
        {"owner": "o" * 257},
        {"group_id": "raise-in-keep"},
        {"environment": "scripted", "task": {"script": [["raise", "early"]]}},
    ],
    ids=lambda fields: " ".join(fields),
)
async def test_what_cannot_be_carried_ends_as_a_run_does(
    client: StubClient, subject: Subject, fields: dict[str, Any]
) -> None:
    arguments = {"task": {"turns": 1}, **fields}
    by_session = await client.run(**arguments)
    async with StubClient(subject.address, subject.pipe.history) as other:
        by_run = await other.run(**arguments)
        adopt(client, other)
    assert by_session.code == by_run.code != "OK"
    told = by_session.message.replace(by_session.run[:8], by_run.run[:8])
    assert (by_session.reason, told) == (by_run.reason, by_run.message)
    assert (by_session.metadata, by_session.retry_seconds) == (by_run.metadata, by_run.retry_seconds)


async def test_fifteen_hundred_runs_of_one_stream_are_answered_each_by_itself(client: StubClient) -> None:
    outcomes = await asyncio.gather(*(client.run({}, environment="none") for _ in range(1_500)))
    assert Counter((outcome.code, outcome.reason) for outcome in outcomes) == {
        ("NOT_FOUND", "ENVIRONMENT_NOT_FOUND"): 1_500
    }
    assert await client.lane.goodbye() == "OK"


# ended_once


async def test_a_run_that_is_left_is_ended_and_nothing_else_is_told_of_it(
    client: StubClient, subject: Subject
) -> None:
    run = await live(client)
    early = client.start(FOREVER, environment="scripted")
    for left in (run, early):
        left.call.cancel()
    for left in (run, early):
        assert (await left.finish()).code == "CANCELLED"
        assert (await lane_run(left).told()).code == 1, "CANCELLED"
    assert await client.cancel(run.run) == "ABORTED"
    assert await client.cancel(early.run) in ("ABORTED", "REMEMBERED"), (
        "it may have been left before it began"
    )
    assert lane_run(run).frames == ["run_admitted", "run_data", "end_run"]
    assert "run_data" not in lane_run(early).frames
    ended = await subject.pipe.seen(run.run, EnvironmentEnded)
    assert isinstance(ended, EnvironmentEnded)
    assert ended.how == "cancelled"


async def test_the_deadline_of_a_run_is_the_servers_to_watch(client: StubClient, subject: Subject) -> None:
    run = client.start(FOREVER, environment="scripted", timeout=0.5)
    outcome = await run.finish()
    assert (outcome.code, outcome.reason) == ("DEADLINE_EXCEEDED", "DEADLINE")
    assert lane_run(run).frames[-1] == "end_run"
    await subject.pipe.seen(run.run, EnvironmentEnded)
    assert await client.cancel(run.run) == "ABORTED"


async def test_what_comes_for_a_run_that_has_ended_means_nothing(client: StubClient) -> None:
    number = lane_run(run := client.start(SHORT, environment="scripted")).number
    assert (await run.finish()).code == "OK"
    for _ in range(2):
        client.lane.put(run_credit=pb.RunCredit(run_number=number, credit_bytes=2**64 - 1))
        client.lane.put(leave_run=pb.LeaveRun(run_number=number))
    assert (await client.run(SHORT, environment="scripted")).code == "OK"
    assert client.lane.epoch == 1, "the stream goes on"
    assert await client.cancel(run.run) == "DISCARDED", "it was delivered, and not left"


# credit_kept, held_up_by_nobody


async def test_without_credit_a_run_is_admitted_and_sends_nothing(by_hand: SessionStream) -> None:
    script = {"script": [["trace"], ["say", 1000], ["say", 2000], ["say", 3000]]}
    await by_hand.send(**opening(1, script, credit_bytes=0), more=[pb.SessionRequest(**opening(2))])
    seen = list[str]()
    async for frame in frames(by_hand):
        if (kind := frame.WhichOneof("frame") or "nothing") == "run_data" and frame.run_data.run_number == 1:
            # While any credit is left one message may come, whatever its size.
            assert seen.count("credit") == 1 + seen.count("data of 1"), seen
            await by_hand.send(run_credit=pb.RunCredit(run_number=1, credit_bytes=len(frame.run_data.data)))
            seen += ["data of 1", "credit"]
            continue
        seen.append(f"{kind} {getattr(frame, kind).run_number}")
        if {"run_admitted 1", "end_run 2"} <= {*seen} and "credit" not in seen:
            await by_hand.send(run_credit=pb.RunCredit(run_number=1, credit_bytes=1))
            seen.append("credit")
        elif kind == "end_run" and frame.end_run.run_number == 1:
            assert frame.end_run.code == 0
            break
    assert "data of 1" in seen


async def test_a_run_that_is_not_read_holds_up_no_other_of_its_stream(
    client: StubClient, subject: Subject
) -> None:
    script = [["trace"], *([["say", MIB]] * 24)]
    clogged = client.start({"script": script}, environment="scripted")
    await subject.pipe.seen(clogged.run, EnvironmentEnded)
    outcomes = await asyncio.gather(*(client.run({"turns": 20, "seed": seed}) for seed in range(16)))
    assert [outcome.code for outcome in outcomes] == ["OK"] * 16
    assert lane_run(clogged).frames.count("run_data") <= 2, "what is not read stands still at its worker"
    assert len((await clogged.finish()).episode.traces[0].nodes) == 24


# gone_with_its_stream


@pytest.mark.parametrize("how", ["broken", "goodbye", "superseded", "malformed"])
async def test_runs_end_with_their_stream(client: StubClient, subject: Subject, how: str) -> None:
    runs = [await live(client) for _ in range(3)]
    async with StubClient(subject.address, subject.pipe.history, "session") as other:
        beside = await live(other)
        lane = client.lane
        if how == "broken":
            await lane.close()
        elif how == "goodbye":
            assert await lane.goodbye() == "OK"
        elif how == "superseded":
            await SessionStream(other.stub, History()).open(lane.session_id, lane.epoch + 1)
        else:
            lane.put(run_credit=pb.RunCredit(run_number=UNOPENED, credit_bytes=1))
        for run in runs:
            outcome = await run.finish()
            assert outcome.code in ("CANCELLED", "UNAVAILABLE")
            assert outcome.reason in ("", "CALLER_LOST")
            ended = await subject.pipe.seen(run.run, EnvironmentEnded)
            assert isinstance(ended, EnvironmentEnded)
            assert ended.how == "cancelled"
            assert await client.cancel(run.run) == "ABORTED"
        assert not subject.pipe.history.of(beside.run, EnvironmentEnded)
        assert await other.cancel(beside.run) == "ABORTED"
        assert (await beside.finish()).reason == "CANCEL_REQUESTED"
        adopt(client, other)
    if how != "superseded":
        assert (await client.run(SHORT, environment="scripted")).code == "OK"
        assert client.lane.epoch == 2


async def test_confirmations_are_answered_in_the_stream_that_carries_runs(by_hand: SessionStream) -> None:
    frame = opening(1)
    run = frame["open_run"].request.request_id
    await by_hand.send(**frame)
    [end] = await ends(by_hand, 1)
    assert end.code == 0
    assert await by_hand.confirm(run) == ["CONFIRMED"]

"""What a session's stream refuses, and that a run's own trouble is none of the stream's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.history import EnvironmentBegan, EnvironmentEnded
from tests.helpers.lane_client import MAX_REQUEST_BYTES
from tests.helpers.session_frames import ends, opening
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from tests.helpers.pools import Subject
    from tests.helpers.session_stream import SessionStream
    from tests.helpers.stub_client import Transport

FOREVER = {"script": [["trace"], ["say", 3], ["forever"]]}
UNOPENED = 2**63


@pytest.fixture
def transport() -> Transport:
    """By Run there is none of this."""
    return "session"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([opening(1), opening(1)], "1"),
        ([opening(5), opening(4)], "4"),
        ([{"run_credit": pb.RunCredit(run_number=UNOPENED)}], str(UNOPENED)),
        ([{"leave_run": pb.LeaveRun(run_number=UNOPENED)}], str(UNOPENED)),
        ([{"open": pb.SessionOpen()}], "open"),
        ([{}], "frame"),
    ],
    ids=[
        "a number twice",
        "a number that falls",
        "credit",
        "leave",
        "open twice",
        "nothing",
    ],
)
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one message"])
async def test_frames_that_make_no_sense_end_their_stream(
    by_hand: SessionStream, subject: Subject, sent: list[dict[str, Any]], words: str, together: bool
) -> None:
    messages = [pb.SessionRequest(**frame) for frame in [opening(0, FOREVER), *sent]]
    for message in messages:
        if message.HasField("open_run"):
            message.open_run.request.request_id = new_id()  # the same test for every subject
    if together:
        messages[0].more.extend(messages[1:])
        del messages[1:]
    for message in messages:
        await by_hand.send_message(message)
    assert await by_hand.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert words in await by_hand.call.details()
    first = messages[0].open_run.request.request_id
    if subject.pipe.history.of(first, EnvironmentBegan):
        await subject.pipe.seen(first, EnvironmentEnded)


async def test_nothing_is_opened_behind_a_goodbye(by_hand: SessionStream) -> None:
    await by_hand.send(goodbye=pb.SessionGoodbye(), more=[pb.SessionRequest(**opening(1))])
    assert await by_hand.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert "goodbye" in await by_hand.call.details()


@pytest.mark.parametrize("what", ["too many", "nested", "open"])
async def test_more_has_its_limits(by_hand: SessionStream, what: str) -> None:
    credit = pb.SessionRequest(leave_run=pb.LeaveRun(run_number=1))
    message = pb.SessionRequest(**opening(1))
    if what == "too many":
        message.more.extend([credit] * 1_024)
        await by_hand.send_message(message)
        assert [end.run_number for end in await ends(by_hand, 1)] == [1], "so many may be"
        message = pb.SessionRequest(**opening(2), more=[credit] * 1_025)
    elif what == "nested":
        message.more.append(pb.SessionRequest(leave_run=credit.leave_run, more=[credit]))
    else:
        message.more.append(pb.SessionRequest(open=pb.SessionOpen()))
    await by_hand.send_message(message)
    assert await by_hand.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert ("1025" if what == "too many" else "open" if what == "open" else "more") in (
        await by_hand.call.details()
    )


async def test_a_client_that_may_not_know_more_gets_none(by_hand: SessionStream) -> None:
    runs = [new_id() for _ in range(200)]
    for run in runs:
        await by_hand.send(confirm=pb.Confirm(request_ids=[run]))
    unanswered = set(runs)
    while unanswered:
        message = await by_hand.read()
        assert message is not None
        assert not message.more
        unanswered -= {answer.request_id for answer in message.confirm_answers.answers}


async def test_a_half_close_is_no_goodbye(by_hand: SessionStream) -> None:
    await by_hand.call.done_writing()
    assert await by_hand.status() == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert "goodbye" in await by_hand.call.details()


async def test_a_request_over_the_sessions_limit_fails_alone(by_hand: SessionStream) -> None:
    large = opening(1)
    large["open_run"].request.task_json = json.dumps({"x": "x" * MAX_REQUEST_BYTES})
    await by_hand.send(**opening(0))
    await by_hand.send(**large)
    await by_hand.send(**opening(2))
    found = {end.run_number: end for end in await ends(by_hand, 3)}
    assert [found[number].code for number in range(3)] == [0, 8, 0], "RESOURCE_EXHAUSTED"
    assert str(MAX_REQUEST_BYTES) in found[1].message
    assert "Run" in found[1].message

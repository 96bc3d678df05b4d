"""A worker that stood still hears first who has come back, and what was cancelled."""

from __future__ import annotations

import asyncio

import pytest

from env_worker.sessions import Sessions
from env_worker.stall import Stall
from tests.helpers.history import DiscardBegan
from tests.helpers.runner_harness import Harness, one_turn, running

A, B = "a" * 32, "b" * 32


def test_only_what_is_late_is_put_off_and_only_once() -> None:
    stall = Stall()
    assert not stall.holds(None, 100.0)
    assert not stall.holds(10.0, 10.0)
    assert not stall.holds(10.0, 10.5)
    assert stall.holds(10.0, 14.0)
    assert stall.next_look(10.0) == 14.5
    assert stall.holds(10.0, 14.4)
    assert not stall.holds(10.0, 14.5)
    assert not stall.holds(10.0, 90.0), "always late, it ends what is over all the same"
    assert stall.holds(15.0, 90.0), "another stall"
    assert stall.next_look(95.0) == 95.0


def away(harness: Harness) -> Sessions:
    sessions = Sessions(harness.runner, instance=A, grace_seconds=3.0, clock=harness.clock)
    for name in (A, B):
        sessions.table.open(name, 1, harness.clock())
        sessions.table.stream_ended(name, 1, harness.clock())
    return sessions


@pytest.mark.parametrize("stalled", [False, True])
async def test_a_worker_that_stood_still_hears_first_who_has_come_back(stalled: bool) -> None:
    async with running() as harness:
        callers = [harness.ask(one_turn, session_id=name) for name in (A, B)]
        assert [await caller.read_on() for caller in callers] == ["OK", "OK"]
        sessions = away(harness)
        harness.clock.advance(50.0 if stalled else 3.0)
        sessions.expire()
        if stalled:
            assert len(sessions.table) == 2, "nobody is lost yet"
            sessions.table.open(A, 2, harness.clock())
            sessions._arm()  # as its stream does; B must still be heard
            assert sessions._expiry is not None
            assert sessions._expiry.when() - asyncio.get_running_loop().time() > 0.25
            harness.clock.advance(0.4)
            sessions.expire()
            assert len(sessions.table) == 2
            harness.clock.advance(0.1)
            sessions.expire()
        await harness.at_rest()
        taken_back = [harness.confirm(caller.id) for caller in callers]
        assert taken_back == (["CONFIRMED", "DISCARDED"] if stalled else ["DISCARDED", "DISCARDED"])
        discards = [len(harness.history.of(caller.id, DiscardBegan)) for caller in callers]
        assert discards == ([0, 1] if stalled else [1, 1])
        sessions.close()


async def test_after_a_stall_that_was_longer_than_the_window_cancels_and_sessions_come_first() -> None:
    async with running() as harness:
        callers = [harness.ask(one_turn, session_id=name) for name in (A, "", "")]
        assert [await caller.read_on() for caller in callers] == ["OK"] * 3
        sessions = away(harness)
        harness.clock.advance(100)
        harness.runner.expire()
        sessions.expire()
        assert harness.runner.table.open_windows == 3
        assert harness.cancel(callers[1].id) == "DISCARDED"
        harness.clock.advance(0.5)
        harness.runner.expire()
        sessions.expire()
        harness.clock.advance(0.5)
        harness.runner.expire()
        assert harness.runner.table.open_windows == 0
        assert [harness.cancel(caller.id) for caller in callers] == ["DISCARDED", "DISCARDED", "TOO_LATE"]
        sessions.close()

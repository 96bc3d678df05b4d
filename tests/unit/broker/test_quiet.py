"""What the log says when runs do not go on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from env_broker.carried import PASSED, REPLIED, Carried, CarriedHop
from env_broker.quiet import SHOWN, STRAGGLER_FACTOR, Line, Quiet
from tests.helpers.clock import FakeClock
from tests.helpers.stub_client import new_id

SECONDS = 60.0


class Watched:
    """A Quiet that is checked every second of its own time, and what it said."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.quiet, self.clock = Quiet(seconds), FakeClock()
        self.said: list[tuple[float, Line]] = []

    @property
    def now(self) -> float:
        return self.clock.now()

    def pass_seconds(self, seconds: int) -> list[str]:
        """What was said within them."""
        before = len(self.said)
        for _ in range(seconds):
            self.clock.advance(1)
            self.said += [(self.now, line) for line in self.quiet.check(self.now)]
        return [line.text for _, line in self.said[before:]]

    def placed(self, run: str = "") -> CarriedHop:
        """A run that was placed now; tell the hop what happens to it."""
        carried = self.quiet.enter(run or new_id(), self.now)
        hop = CarriedHop(Taking(), carried, self.clock)
        hop.placed("w at a:1")
        return hop


def goes_on(carried: Carried, now: float) -> None:
    """Its client takes a message that is not its first."""
    carried.messages = 2
    carried.happened(PASSED, now)


class Taking:
    """A client that takes everything."""

    async def admitted(self) -> None:
        return None

    async def send(self, message: bytes) -> None:
        return None

    def give_up(self, *, quietly: bool) -> None:
        raise AssertionError("nothing waits to be written")

    def time_remaining(self) -> float | None:
        return 7.0


def test_a_run_that_waits_alone_is_named_with_its_age() -> None:
    watched = Watched()
    run = new_id()
    watched.quiet.enter(run, watched.now)
    assert watched.pass_seconds(59) == []
    said = watched.pass_seconds(1)
    assert said[0].startswith("no run has gone on for 60.0 s")
    assert said[1:] == [f"run={run[:8]} worker=none last event='queued' age=60.0 s"]
    assert run not in "".join(said)  # 8 digits, and no more
    assert all(line.level == logging.WARNING for _, line in watched.said)


def test_it_is_repeated_with_doubling_pauses_and_ends_with_a_line() -> None:
    watched = Watched()
    run = new_id()
    carried = watched.quiet.enter(run, watched.now)
    watched.pass_seconds(500)
    first = [now - 1000 for now, line in watched.said if line.text.startswith("no run")]
    assert first == [60, 120, 240, 480]
    goes_on(carried, watched.now)
    assert watched.pass_seconds(1) == ["runs go on again"]
    assert watched.said[-1][1].level == logging.INFO
    assert watched.pass_seconds(58) == []
    assert watched.pass_seconds(1)[0].startswith("no run has gone on for 60.0 s")
    watched.quiet.leave(carried, watched.now)
    assert watched.pass_seconds(1) == ["no run is carried any more"]
    assert watched.pass_seconds(300) == []


def test_a_quiet_that_is_shorter_than_the_pause_between_checks() -> None:
    watched = Watched(0.1)
    carried = watched.quiet.enter(new_id(), watched.now)
    assert watched.pass_seconds(1)[0].startswith("no run has gone on for 1.0 s")
    goes_on(carried, watched.now + 0.2)
    said = watched.pass_seconds(1)
    assert said[0] == "runs go on again"
    assert said[1].startswith("no run has gone on for 0.8 s")


def test_the_oldest_few_are_named_and_the_rest_counted() -> None:
    watched = Watched()
    runs = [new_id() for _ in range(SHOWN + 3)]
    for run in runs:
        watched.placed(run)
        watched.pass_seconds(1)
    said = watched.pass_seconds(59)
    assert [line.partition(" ")[0] for line in said[1:-1]] == [f"run={run[:8]}" for run in runs[:SHOWN]]
    assert said[-1].startswith("and 3 more")


async def test_every_event_of_a_run_is_a_word() -> None:
    watched = Watched()

    class Slow(Taking):
        async def send(self, message: bytes) -> None:
            await asyncio.Event().wait()

    carried = watched.quiet.enter("a" * 32, watched.now)
    words = [carried.last_event]
    clock = FakeClock()
    hop, slow = CarriedHop(Taking(), carried, clock), CarriedHop(Slow(), carried, clock)
    hop.placed("w at a:1")
    words.append(carried.last_event)
    hop.declined()
    words.append(f"{carried.last_event} {carried.worker}")
    hop.placed("v at b:1")
    await hop.admitted()
    words.append(f"{carried.last_event} {carried.worker}")
    await hop.send(b"")
    words.append(carried.last_event)
    clock.advance(5)
    writing = asyncio.create_task(slow.send(b""))
    await asyncio.sleep(0)
    words.append(carried.last_event)
    assert carried.at == clock.now()
    writing.cancel()
    watched.quiet.cancel_sent("a" * 32, clock.now() + 1)
    words.append(carried.last_event)
    assert carried.at == clock.now() + 1
    assert hop.time_remaining() == 7.0
    assert words == [
        "queued",
        "placed",
        "queued ",
        "admitted v at b:1",
        "message 1 passed",
        "message 2 came, and its client has yet to read it",
        "cancel sent",
    ]


def test_runs_that_come_and_leave_are_no_progress() -> None:
    watched = Watched()
    watched.placed()
    said: list[str] = []
    for _ in range(12):  # a caller that tries again every 10 s, and gives up
        carried = watched.quiet.enter(new_id(), watched.now)
        said += watched.pass_seconds(10)
        watched.quiet.leave(carried, watched.now)
    assert next(line for line in said if line.startswith("no run")) == (
        "no run has gone on for 60.0 s; the longest quiet of 2 follow"
    )


async def test_runs_that_come_as_far_as_their_prompt_are_no_progress() -> None:
    watched = Watched()
    said: list[str] = []
    hop = watched.placed()
    for _ in range(70):  # a caller that gives up after a second, and comes again at once
        await hop.admitted()
        await hop.send(b"prompt")
        said += watched.pass_seconds(1)
        watched.quiet.cancel_sent(hop._carried.request_id, watched.now)
        before, hop = hop, watched.placed()
        watched.quiet.leave(before._carried, watched.now)
    assert said[0] == "no run has gone on for 60.0 s; the longest quiet of 1 follow"
    assert said[1].endswith("worker=w at a:1 last event='message 1 passed' age=1.0 s")


@pytest.mark.parametrize("how", ["second message", "reply"])
async def test_what_went_on_counts_although_its_run_has_left(how: str) -> None:
    watched = Watched()
    watched.placed()
    for _ in range(20):
        hop = watched.placed()
        await hop.send(b"")
        if how == "reply":
            hop._carried.happened(REPLIED, watched.now)
        else:
            await hop.send(b"")
        assert watched.pass_seconds(10) == []
        watched.quiet.cancel_sent(hop._carried.request_id, watched.now)
        watched.quiet.leave(hop._carried, watched.now)


def test_callers_that_give_up_together_and_come_again_are_no_progress() -> None:
    watched = Watched()
    for second in range(600):
        hops = [watched.placed() for _ in range(3)]
        watched.pass_seconds(1)
        for hop in hops:
            watched.quiet.leave(hop._carried, watched.now)
        if second % 10 == 0:
            watched.pass_seconds(1)  # seen without runs
    lines = [(now, line.text) for now, line in watched.said if line.text.startswith("no run")]
    told = [now for now, text in lines if "has gone on" in text]
    assert len(told) == 4, "with doubling pauses, as if the runs had stayed"
    assert watched.said[0][1].text == "no run has gone on for 60.0 s; the longest quiet of 3 follow"
    assert [line.text for _, line in watched.said if line.level == logging.INFO] == (
        ["no run is carried any more"] * len(told)
    )


def test_after_a_long_rest_the_silence_begins_anew() -> None:
    watched = Watched()
    hop = watched.placed()
    watched.pass_seconds(70)
    watched.quiet.leave(hop._carried, watched.now)
    assert watched.pass_seconds(60) == ["no run is carried any more"]
    watched.placed()
    assert watched.pass_seconds(59) == []
    assert watched.pass_seconds(1)[0].startswith("no run has gone on for 60.0 s")


def test_a_run_that_went_on_and_left_was_progress() -> None:
    watched = Watched()
    watched.placed()
    for _ in range(20):
        carried = watched.quiet.enter(new_id(), watched.now)
        assert watched.pass_seconds(10) == []
        goes_on(carried, watched.now)
        watched.quiet.leave(carried, watched.now)


def test_time_without_runs_is_not_quiet() -> None:
    watched = Watched()
    assert watched.pass_seconds(1000) == []
    watched.quiet.enter(new_id(), watched.now)
    assert watched.pass_seconds(59) == []
    assert len(watched.pass_seconds(1)) == 2


def test_a_single_run_that_stays_behind_is_named_once() -> None:
    watched = Watched(10)
    stuck = [new_id() for _ in range(SHOWN + 2)]
    for run in stuck:
        watched.placed(run)
    busy = watched.quiet.enter(new_id(), watched.now)
    said: list[str] = []
    for _ in range(STRAGGLER_FACTOR * 10 + 20):
        goes_on(busy, watched.now)
        said += watched.pass_seconds(1)
    assert sorted(line.split("run=")[1][:8] for line in said) == sorted(run[:8] for run in stuck)
    assert all(line.startswith("while others go on") for line in said)
    per_check = [now for now, _ in watched.said]
    assert max(per_check.count(now) for now in per_check) == SHOWN


def test_a_broker_that_stood_still_says_nothing_of_its_own_pause() -> None:
    watched = Watched()
    carried = watched.quiet.enter(new_id(), watched.now)
    goes_on(carried, watched.now)
    assert watched.pass_seconds(1) == []
    watched.clock.advance(500)  # SIGSTOP
    assert watched.pass_seconds(1) == []
    goes_on(carried, watched.now)  # what had come meanwhile
    assert watched.pass_seconds(30) == []


@pytest.mark.parametrize("first", [0, 1])
def test_an_id_that_comes_again_while_its_run_ends(first: int) -> None:
    quiet = Quiet()
    run = new_id()
    both = [quiet.enter(run, 0.0), quiet.enter(run, 0.0)]
    quiet.cancel_sent(run, 1.0)
    assert [carried.event for carried in both] == ["queued", "cancel sent"]
    quiet.leave(both.pop(first), 1.5)
    quiet.leave(both.pop(), 1.5)
    assert len(quiet) == 0
    quiet.cancel_sent(run, 2.0)
    assert quiet.check(3.0) == []

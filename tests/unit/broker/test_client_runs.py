"""The runs of one stream: opened, left, late, over; and each is told its end once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker.channel_options import MAX_MESSAGE_BYTES
from env_broker.client_hop import HopBrokenError, SessionHop
from env_broker.client_runs import ClientRuns
from env_broker.counters import CANCELLED, FAILED, REFUSED, REPLIED, RUNS, Counters
from env_broker.held_request import HeldRequest
from env_broker.run_carrier import RunCarrier
from env_broker.session_frames import Opening
from env_broker.session_outbox import Outbox
from env_broker.status import DETAILS_KEY, Refusal, error_reason, short
from env_broker.worker_cancel import PassedOn

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.relay import ClientHop

PLENTY = 2**20
BUG = "a bug"


class Relay:
    """Does with a run what its request's environment says."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.hops: dict[str, ClientHop] = {}
        self.expected: list[str] = []

    async def carry(self, request: HeldRequest, hop: ClientHop) -> None:
        self.hops[request.request_id] = hop
        match request.environment:
            case "refuse":
                raise Refusal("QUEUE_FULL", "no room", retry_after=1.0, limit=3)
            case "pass on":
                details = Refusal("INTERNAL", "the worker's words")
                trailing = grpc.aio.Metadata(*details.trailing_metadata())
                raise PassedOn(
                    grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), trailing, "the words")
                )
            case "foreign":
                raise PassedOn(
                    grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata())
                )
            case "fail":
                raise ValueError(BUG)
        try:
            await hop.admitted()
            await hop.admitted()
            await hop.send(b"a")
            await hop.send(b"reply")
            if request.environment == "hang":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise


class World:
    def __init__(self) -> None:
        self.relay, self.counters = Relay(), Counters()
        relay: Any = self.relay
        self.outbox = Outbox(lambda: None)
        self.runs = ClientRuns(
            self.outbox,
            RunCarrier(relay=relay, counters=self.counters, expect=self.relay.expected.append),
        )
        self.seen: list[str] = []
        self.ends: dict[int, pb.EndRun] = {}

    def open(
        self, number: int, environment: str = "", *, timeout: float | None = None, credit: int = PLENTY
    ) -> None:
        request = pb.RunRequest(request_id=f"{number:032x}", environment=environment, session_id="5" * 32)
        held = HeldRequest(request, request.SerializeToString())
        self.runs.open(Opening(number=number, request=held, timeout=timeout, credit=credit))

    def refused_request(self, number: int, refusal: Refusal) -> None:
        self.runs.open(Opening(number=number, request=refusal, timeout=None, credit=PLENTY))

    def read(self) -> bool:
        data = self.outbox.message()
        if data is None:
            return False
        self.outbox.written()
        message = pb.SessionResponse.FromString(data)
        for frame in (message, *message.more):
            kind = frame.WhichOneof("frame") or ""
            number = getattr(frame, kind).run_number
            self.seen.append(f"{number} {frame.run_data.data.decode() if kind == 'run_data' else kind}")
            if kind == "end_run":
                assert number not in self.ends, "one end each"
                self.ends[number] = frame.end_run
        return True

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self.read()
                await asyncio.sleep(0)

    def reason(self, number: int) -> str | None:
        return error_reason([(DETAILS_KEY, self.ends[number].status_details)])

    def count(self, *names: str) -> list[int]:
        return [self.counters.view()[name] for name in names]


async def test_a_run_is_told_what_the_relay_tells_and_its_end_last() -> None:
    world = World()
    world.open(4)
    await world.until(lambda: world.ends)
    assert world.seen == ["4 run_admitted", "4 a", "4 reply", "4 end_run"]
    assert world.ends[4] == pb.EndRun(run_number=4)
    assert world.relay.expected == ["5" * 32]
    assert world.count(RUNS, REPLIED, CANCELLED, FAILED, REFUSED) == [1, 1, 0, 0, 0]
    assert len(world.runs) == world.outbox.runs == 0


async def test_a_status_crosses_as_trailing_metadata_would_carry_it() -> None:
    world = World()
    for number, environment in enumerate(("refuse", "pass on", "foreign", "fail")):
        world.open(number, environment)
    world.refused_request(9, Refusal("MESSAGE_TOO_LARGE", "too large"))
    await world.until(lambda: len(world.ends) == 5)
    refusal = Refusal("QUEUE_FULL", "no room", retry_after=1.0, limit=3)
    details = dict(refusal.trailing_metadata())[DETAILS_KEY]
    assert world.ends[0] == pb.EndRun(code=8, message="no room", status_details=details)
    assert (world.ends[1].code, world.ends[1].message, world.reason(1)) == (13, "the words", "INTERNAL")
    assert world.ends[2] == pb.EndRun(run_number=2, code=2)
    assert (world.ends[3].code, world.reason(3)) == (13, "INTERNAL")
    assert BUG in world.ends[3].message
    assert (world.ends[9].code, world.reason(9)) == (8, "MESSAGE_TOO_LARGE")
    assert world.count(RUNS, REFUSED, FAILED) == [5, 1, 4]
    assert world.seen == [f"{number} end_run" for number in (0, 1, 2, 3, 9)]


@pytest.mark.parametrize("when", ["before it began", "without credit", "written", "twice"])
async def test_a_run_that_is_left_is_cancelled_and_told_nothing_but_its_end(when: str) -> None:
    world = World()
    world.open(1, "hang", credit=0 if when == "without credit" else PLENTY)
    world.open(2, "hang")
    if when != "before it began":
        await world.until(lambda: "1 run_admitted" in world.seen and "2 reply" in world.seen)
    before = len(world.seen)
    world.runs.leave(1)
    if when == "twice":
        world.runs.leave(1)
    await world.until(lambda: 1 in world.ends)
    assert [word for word in world.seen[before:] if word[0] == "1"] == ["1 end_run"]
    assert (world.ends[1].code, world.reason(1)) == (1, "CALLER_LOST")
    assert f"run {short(f'{1:032x}')} was left" in world.ends[1].message
    assert world.count(RUNS, CANCELLED) == [2, 1]
    assert world.relay.cancelled == [f"{1:032x}"] * (when != "before it began")
    world.runs.leave(1)
    world.runs.credit(1, 5)
    assert list(world.ends) == [1], "the other goes on"
    world.runs.leave(2)
    await world.until(lambda: 2 in world.ends)


async def test_a_deadline_ends_a_run_as_such() -> None:
    world = World()
    world.open(1, "hang", timeout=0.01)
    world.open(2, "hang", timeout=0.0)
    world.open(3, "hang", timeout=2.0**64)
    await world.until(lambda: 1 in world.ends and 2 in world.ends)
    for number in (1, 2):
        assert (world.ends[number].code, world.reason(number)) == (4, "DEADLINE")
    assert (world.relay.hops[f"{3:032x}"].time_remaining() or 0) > 1e18
    assert world.relay.hops[f"{1:032x}"].time_remaining() == 0.0
    world.runs.leave(3)
    await world.until(lambda: 3 in world.ends)
    assert world.count(RUNS, CANCELLED) == [3, 3], "also one that was over before it began"
    assert f"run {short(f'{1:032x}')} took longer than its deadline of 0.01 s" in world.ends[1].message


async def test_numbers_rise_and_are_those_of_runs() -> None:
    world = World()
    world.open(5)
    for number in (5, 4, 0):
        with pytest.raises(Refusal, match=f"run_number {number}, and 5 came before"):
            world.open(number)
    with pytest.raises(Refusal, match="run_credit has run_number 6, and the last run that was opened is 5"):
        world.runs.credit(6, 1)
    with pytest.raises(Refusal, match="leave_run has run_number 6, and the last run that was opened is 5"):
        world.runs.leave(6)
    world.open(2**64 - 1)
    await world.until(lambda: len(world.ends) == 2)


async def test_a_stream_that_is_over_takes_all_its_runs_with_it_and_tells_nobody() -> None:
    world = World()
    world.open(1, "hang")
    world.open(2, "hang", credit=0)
    await world.until(lambda: "1 reply" in world.seen and "2 run_admitted" in world.seen)
    world.open(3)
    world.runs.abandon()
    await asyncio.wait_for(world.runs.gone(), 10)
    assert world.relay.cancelled == [f"{number:032x}" for number in (1, 2)]
    await asyncio.sleep(0)
    assert not world.read()
    assert len(world.runs) == world.outbox.runs == 0
    await world.runs.gone()


async def test_a_hop_over_a_stream_that_is_over_is_broken() -> None:
    world = World()
    hop = SessionHop(world.outbox.outlet(1, PLENTY), None)
    assert hop.time_remaining() is None
    world.outbox.close()
    with pytest.raises(HopBrokenError):
        await hop.admitted()
    with pytest.raises(HopBrokenError):
        await hop.send(b"a")


async def test_a_message_over_the_limit_fails_its_run_before_it_breaks_the_stream() -> None:
    world = World()
    hop = SessionHop(world.outbox.outlet(1, PLENTY), None)
    with pytest.raises(Refusal, match="the limit is 67108864") as error:
        await hop.send(bytes(MAX_MESSAGE_BYTES + 1))
    assert error.value.reason == "MESSAGE_TOO_LARGE"
    assert world.outbox.message() is None


async def test_a_hop_that_is_cancelled_keeps_nothing_of_its_message() -> None:
    world = World()
    for credit in (0, PLENTY):
        hop = SessionHop(world.outbox.outlet(1, credit), None)
        sending = asyncio.create_task(hop.send(b"a"))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert world.outbox.message() is None


@pytest.mark.parametrize("quietly", [False, True])
@pytest.mark.parametrize("credit", [0, PLENTY])
async def test_a_hop_that_is_given_up_drops_what_waits_and_not_what_is_being_written(
    credit: int, quietly: bool
) -> None:
    world = World()
    outlet = world.outbox.outlet(1, credit)
    hop = SessionHop(outlet, None)
    sending = asyncio.create_task(hop.send(b"a"))
    await asyncio.sleep(0)
    taken = world.outbox.message()
    assert (taken is None) is (credit == 0)
    hop.give_up(quietly=quietly)
    await asyncio.sleep(0)
    if taken is not None:
        assert not sending.done()
        world.outbox.written()
    if taken is None and not quietly:
        with pytest.raises(asyncio.CancelledError):
            await sending
    else:
        await sending
    outlet.allow(PLENTY)
    if not quietly:
        with pytest.raises(asyncio.CancelledError):
            await hop.send(b"b")
    elif taken is None:
        await hop.send(b"b")
    assert world.outbox.message() is None, "there is no gap before a message"


async def test_what_comes_of_a_run_that_was_taken_back_needs_credit_at_once() -> None:
    world = World()
    hop = SessionHop(world.outbox.outlet(1, 1), None)
    hop.give_up(quietly=True)
    sending = asyncio.create_task(hop.send(b"a"))
    await asyncio.sleep(0)
    assert world.outbox.message() is not None, "it goes on to who reads it"
    world.outbox.written()
    await sending
    await hop.send(b"b")
    assert world.outbox.message() is None
    hop.give_up(quietly=False)
    with pytest.raises(asyncio.CancelledError):
        await hop.send(b"c")

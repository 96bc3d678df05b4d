"""The broker's lane to a worker, in every order of events, against one that counts numbers and credit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.env_service_pb2 import (
    EndRun,
    RunAdmitted,
    RunData,
    RunRequest,
    SessionRequest,
    SessionResponse,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from env_broker.held_request import HeldRequest
from env_broker.lane_frames import MAX_FRAMES, MESSAGE_BYTES
from env_broker.lane_run import CREDIT_BYTES, LaneRun
from env_broker.lane_table import LaneTable
from tests.helpers.raw_client import run_request

if TYPE_CHECKING:
    from env_broker.worker_call import WorkerCall

LARGEST = 2 * CREDIT_BYTES


@dataclass(eq=False)
class Modelled:
    """A run, as both sides should see it."""

    request: bytes
    run: LaneRun = field(init=False)
    number: int = 0
    """0 until the worker has heard of it."""
    credit: int = 0
    sent: bytes = b""
    read: int = 0
    left: bool = False
    told: bool = False
    """Whether the worker has heard that it was left."""
    ended: bool = False
    fell_back: bool = False

    @property
    def at_worker(self) -> bool:
        return self.number > 0 and not self.ended and not self.told


def step(work: Any) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    return ended.value.value


class Lane(RuleBasedStateMachine):
    """The table, with one entry a run, and the frames that a worker has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LaneTable(self._note)
        self.runs: list[Modelled] = []
        self.last = 0
        self.noted = 0

    def _note(self) -> None:
        self.noted += 1

    def _pick(self, data: st.DataObject, wanted: list[Modelled]) -> Modelled:
        return data.draw(st.sampled_from(wanted), label="run")

    def _some(self, **wanted: bool) -> list[Modelled]:
        return [r for r in self.runs if all(getattr(r, name) is value for name, value in wanted.items())]

    @rule(size=st.sampled_from([0, 0, 0, 5_000, 120_000, 400_000]))
    def comes(self, size: int) -> None:
        modelled = Modelled(run_request(f"{len(self.runs):032x}", task_json="x" * size))
        held = HeldRequest(RunRequest.FromString(modelled.request), modelled.request)

        def by_run(request: HeldRequest, timeout: float | None) -> WorkerCall:
            assert (request.data, timeout) == (modelled.request, None)
            modelled.fell_back = True
            return None  # type: ignore[return-value]

        modelled.run = LaneRun(self.table, held, None, by_run)
        self.runs.append(modelled)
        before = self.noted
        self.table.due(modelled.run)
        assert self.noted > before

    @rule()
    def the_worker_reads(self) -> None:
        self._read_on()

    def _read_on(self) -> bool:
        """Whether there was a message."""
        message = self.table.next_message()
        if not message:
            assert self.table.waiting <= sum(r.read > 0 for r in self.runs if r.at_worker and not r.left), (
                "nothing but credit waits for more"
            )
            return False
        frames = SessionRequest.FromString(message)
        parts = [frames, *frames.more]
        assert len(parts) <= MAX_FRAMES
        assert len(message) <= MESSAGE_BYTES + 8 * len(parts) or len(parts) == 1
        by_number = {run.number: run for run in self.runs if run.number}
        for part in parts:
            match part.WhichOneof("frame"):
                case "open_run":
                    opening = part.open_run
                    run = self.runs[int(opening.request.request_id, 16)]
                    assert opening.run_number > self.last, "numbers rise"
                    assert opening.request.SerializeToString() == run.request
                    assert not run.number, "it is opened once"
                    assert not run.left, "nobody wants it any more"
                    self.last = run.number = opening.run_number
                    run.credit = opening.credit_bytes
                case "run_credit":
                    run = by_number[part.run_credit.run_number]
                    assert not run.ended
                    assert not run.told
                    run.credit += part.run_credit.credit_bytes
                    assert run.credit <= CREDIT_BYTES
                case "leave_run":
                    run = by_number[part.leave_run.run_number]
                    assert run.left
                    assert not run.told, "it is said once"
                    run.told = True
        return True

    @precondition(lambda self: any(r.at_worker and r.credit > 0 for r in self.runs))
    @rule(data=st.data(), size=st.sampled_from([0, 1, 100, 70_000, CREDIT_BYTES, LARGEST]))
    def the_worker_sends(self, data: st.DataObject, size: int) -> None:
        run = self._pick(data, [r for r in self.runs if r.at_worker and r.credit > 0])
        piece = bytes([len(run.sent) % 251]) * size
        run.credit -= size
        frame = SessionResponse(run_data=RunData(run_number=run.number, data=piece))
        if data.draw(st.booleans(), label="behind another frame"):
            frame = SessionResponse(run_admitted=RunAdmitted(run_number=run.number), more=[frame])
        self.table.take(frame)
        if not run.left:
            run.sent += piece
            assert step(run.run.admitted()) is True

    @precondition(lambda self: any(r.at_worker for r in self.runs))
    @rule(data=st.data(), code=st.sampled_from([0, 14]))
    def the_worker_ends_it(self, data: st.DataObject, code: int) -> None:
        run = self._pick(data, [r for r in self.runs if r.at_worker])
        self.table.take(SessionResponse(end_run=EndRun(run_number=run.number, code=code)))
        run.ended = True

    @precondition(lambda self: any(r.read < len(r.sent) and not r.left for r in self.runs))
    @rule(data=st.data())
    def its_reader_takes(self, data: st.DataObject) -> None:
        run = self._pick(data, [r for r in self.runs if r.read < len(r.sent) and not r.left])
        piece = step(run.run.read())
        assert piece == run.sent[run.read : run.read + len(piece)]
        run.read += len(piece)

    @precondition(lambda self: any(not r.left for r in self.runs))
    @rule(data=st.data())
    def nobody_wants_it(self, data: st.DataObject) -> None:
        run = self._pick(data, self._some(left=False))
        run.run.cancel()
        run.left = True

    @invariant()
    def nothing_grows(self) -> None:
        assert self.table.waiting <= len(self.runs)
        kept = [r for r in self.runs if r.number and not r.left and not r.ended]
        assert len(self.table) == len(kept), "the others are forgotten"
        for run in kept:
            assert len(run.sent) - run.read < CREDIT_BYTES + LARGEST

    def teardown(self) -> None:
        while self._read_on():
            pass
        for run in [r for r in self.runs if r.at_worker and not r.left]:
            while run.read < len(run.sent):
                run.read += len(step(run.run.read()))
            self._read_on()
            assert run.credit >= CREDIT_BYTES // 2, "who has read all gets more"
        unsent = [r for r in self.runs if not (r.number or r.left)]
        carried = [r for r in self.runs if r.at_worker and not r.left]
        self.table.end(grpc.StatusCode.UNAVAILABLE, "over", fall_back=True)
        assert [r for r in self.runs if r.fell_back] == unsent
        for run in carried:
            with pytest.raises(grpc.aio.AioRpcError, match="over"):
                step(run.run.read())
        assert (len(self.table), self.table.waiting, self.table.next_message()) == (0, 0, b"")


Lane.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLane = Lane.TestCase

"""What a lane writes and reads, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import env_service_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from env_client.lane_frames import INITIAL_CREDIT, Opening, Outbox, RunStatus, decoded

if TYPE_CHECKING:
    from collections.abc import Iterator


class Run:
    """Has read so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def claim(self) -> int:
        credit, self.size = self.size, 0
        return credit


def opening(size: int = 10, *, deadline: float | None = None, name: str = "") -> Opening:
    return Opening(pb.RunRequest(environment=name), size, deadline)


def frames_of(message: pb.SessionRequest | None) -> list[tuple[str, int, int]]:
    """Kind, number and credit of each frame of one message."""
    frames: list[tuple[str, int, int]] = []
    for frame in () if message is None else (message, *message.more):
        kind = str(frame.WhichOneof("frame"))
        content = getattr(frame, kind)
        frames.append((kind, content.run_number, getattr(content, "credit_bytes", 0)))
    return frames


def drained(outbox: Outbox, now: float = 0.0) -> Iterator[list[tuple[str, int, int]]]:
    while (message := outbox.next_message(now)) is not None:
        yield frames_of(message)


def test_a_message_is_read_frame_by_frame() -> None:
    answers = pb.ConfirmAnswers(answers=[pb.ConfirmAnswer(request_id="r")])
    message = pb.SessionResponse(
        run_data=pb.RunData(run_number=7, data=b"a"),
        more=[
            pb.SessionResponse(run_admitted=pb.RunAdmitted(run_number=8)),
            pb.SessionResponse(end_run=pb.EndRun(run_number=7, code=14, message="gone", status_details=b"d")),
            pb.SessionResponse(confirm_answers=answers),
            pb.SessionResponse(),  # As one of a later version looks.
            pb.SessionResponse(run_data=pb.RunData(run_number=8, data=b"bc")),
            pb.SessionResponse(end_run=pb.EndRun(run_number=8)),
        ],
    )
    frames = decoded(message.SerializeToString())
    gone = RunStatus(14, "gone", b"d")
    admitted = (8, pb.RunAdmitted(run_number=8))
    assert frames == [(7, b"a"), admitted, (7, gone), (0, answers), (8, b"bc"), (8, RunStatus(0))]
    assert decoded(b"") == []
    ((number, opened),) = decoded(
        pb.SessionResponse(opened=pb.SessionOpened(instance="i")).SerializeToString()
    )
    assert number == 0
    assert isinstance(opened, pb.SessionOpened)
    with pytest.raises(DecodeError):
        decoded(b"\xff")


def test_what_is_due_leaves_together_in_order() -> None:
    outbox = Outbox()
    assert outbox.next_message(0.0) is None
    run = Run(5)
    outbox.credit(1, run, pressing=True)
    outbox.open(2, opening())
    outbox.leave(3)
    run.size += 6
    outbox.credit(1, run, pressing=True)
    assert len(outbox) == 3
    assert list(drained(outbox)) == [
        [("run_credit", 1, 11), ("open_run", 2, INITIAL_CREDIT), ("leave_run", 3, 0)]
    ]
    assert len(outbox) == 0


def test_credit_that_is_not_pressing_does_not_hold_up_what_is() -> None:
    outbox = Outbox()
    outbox.open(2, opening())
    outbox.credit(1, Run(5), pressing=False)
    assert list(drained(outbox)) == [[("open_run", 2, INITIAL_CREDIT), ("run_credit", 1, 5)]]


def test_credit_that_is_not_pressing_leaves_with_what_is() -> None:
    outbox = Outbox()

    def riding(number: int) -> None:
        outbox.credit(number, Run(5), pressing=False)
        assert outbox.next_message(0.0) is None
        assert len(outbox) == 1

    for number in (1, 2):
        riding(number)
        outbox.open(number + 10, opening())
        assert list(drained(outbox)) == [
            [("run_credit", number, 5), ("open_run", number + 10, INITIAL_CREDIT)]
        ]
    riding(3)
    outbox.leave(4)
    assert list(drained(outbox)) == [[("run_credit", 3, 5), ("leave_run", 4, 0)]]
    riding(5)
    outbox.confirm("run")
    message = outbox.next_message(0.0)
    assert message is not None
    assert [frame.run_credit.run_number for frame in message.more] == [5]
    riding(6)
    outbox.credit(6, Run(0), pressing=True)
    assert list(drained(outbox)) == [[("run_credit", 6, 5)]]
    riding(7)
    outbox.forget(7)
    assert len(outbox) == 0


def test_of_a_run_that_is_left_nothing_else_is_said() -> None:
    outbox = Outbox()
    outbox.credit(1, Run(5), pressing=True)
    outbox.leave(1)
    outbox.open(2, opening())
    outbox.leave(2)  # The server need not know of it.
    outbox.open(3, opening())
    outbox.credit(
        3, Run(5), pressing=True
    )  # A server that sends of a run that it does not know yet gets nothing for it.
    outbox.credit(4, Run(5), pressing=True)
    outbox.forget(4)
    outbox.forget(5)
    assert list(drained(outbox)) == [[("leave_run", 1, 0), ("open_run", 3, INITIAL_CREDIT)]]


def test_the_time_that_is_left_is_that_when_it_leaves() -> None:
    outbox = Outbox()
    for number, deadline in enumerate((None, 10.0, 10.0004, 3.0), 1):
        outbox.open(number, opening(deadline=deadline, name="e"))
    message = outbox.next_message(4.0)
    assert message is not None
    opened = [frame.open_run for frame in (message, *message.more)]
    assert [run.HasField("timeout_millis") for run in opened] == [False, True, True, True]
    assert [run.timeout_millis for run in opened] == [0, 6000, 6001, 0]
    assert {run.request.environment for run in opened} == {"e"}


def test_a_message_is_bounded() -> None:
    outbox = Outbox()
    for number, size in enumerate((100, 200, 60, 300, 1, 1), 1):
        outbox.open(number, opening(size * 1024))
    sizes = [[number for _, number, _ in message] for message in drained(outbox)]
    assert sizes == [[1], [2], [3], [4], [5, 6]]
    for number in range(3_000):
        outbox.leave(number)
    assert [len(message) for message in drained(outbox)] == [1_025, 1_025, 950]


def test_runs_that_were_not_told_of_can_be_taken_back() -> None:
    outbox = Outbox()
    outbox.credit(1, Run(5), pressing=True)
    for number in (2, 3):
        outbox.open(number, opening(number))
    outbox.leave(3)
    assert {number: run.size for number, run in outbox.take_openings().items()} == {2: 2}
    assert list(drained(outbox)) == [[("run_credit", 1, 5)]]


def test_the_time_left() -> None:
    assert opening().seconds_left(5.0) is None
    assert opening(deadline=7.0).seconds_left(5.0) == 2.0
    assert opening(deadline=4.0).seconds_left(5.0) == 0.0


class _Server:
    """What a server knows of the runs, by the frames that came."""

    def __init__(self) -> None:
        self.credit: dict[int, int] = {}
        self.left: set[int] = set()

    def take(self, message: pb.SessionRequest | None) -> None:
        for kind, number, credit in frames_of(message):
            if kind == "open_run":
                assert number > max(self.credit, default=0)
                self.credit[number] = 0
            else:
                assert number in self.credit
                assert number not in self.left
                self.credit[number] += credit
                if kind == "leave_run":
                    self.left.add(number)


@given(st.lists(st.sampled_from(["open", "credit", "leave", "write", "other"]), max_size=60), st.data())
def test_whatever_becomes_due_and_when_the_server_gets_a_right_sequence(
    steps: list[str], data: st.DataObject
) -> None:
    outbox, server = Outbox(), _Server()
    live: list[int] = []
    allowed: dict[int, int] = {}
    runs: dict[int, Run] = {}
    last = 0
    for step in steps:
        if step == "open":
            last += 1
            outbox.open(last, opening())
            live.append(last)
        elif step == "write":
            server.take(outbox.next_message(0.0))
        elif live:
            number = data.draw(st.sampled_from(live))
            if step == "credit" and number in server.credit:  # As what was read had come.
                run = runs.setdefault(number, Run(0))
                run.size += number
                outbox.credit(number, run, pressing=data.draw(st.booleans()))
                allowed[number] = allowed.get(number, 0) + number
            elif step == "leave":
                outbox.leave(number)
                live.remove(number)
        assert len(outbox) <= last
    outbox.open(last + 1, opening())  # With which leaves what is not pressing.
    while (message := outbox.next_message(0.0)) is not None:
        server.take(message)
    assert len(outbox) == 0
    assert set(live) <= set(server.credit)
    assert not server.left & set(live)
    for number in live:
        assert server.credit[number] == allowed.get(number, 0)


def test_confirmations_leave_first_and_together() -> None:
    outbox = Outbox()
    outbox.credit(1, Run(5), pressing=False)
    for number in range(1_030):
        outbox.confirm(f"run-{number}")
    assert len(outbox) == 1_031
    first, second = outbox.next_message(0.0), outbox.next_message(0.0)
    assert first is not None
    assert second is not None
    assert list(first.confirm.request_ids) == [f"run-{number}" for number in range(1_024)]
    assert [frame.run_credit.credit_bytes for frame in first.more] == [5]
    assert list(second.confirm.request_ids) == [f"run-{number}" for number in range(1_024, 1_030)]
    assert outbox.next_message(0.0) is None


def test_a_confirmation_that_is_withdrawn_is_not_sent() -> None:
    outbox = Outbox()
    for name in ("a", "b", "c"):
        outbox.confirm(name)
    for name in ("b", "b", "never asked for"):
        outbox.withdraw(name)
    assert len(outbox) == 2
    message = outbox.next_message(0.0)
    assert message is not None
    assert list(message.confirm.request_ids) == ["a", "c"]
    outbox.withdraw("a")  # It has left.
    outbox.confirm("d")
    outbox.withdraw("d")
    assert len(outbox) == 0
    assert outbox.next_message(0.0) is None


@pytest.mark.parametrize("confirmations", [0, 1])
def test_no_message_has_more_than_1024_further_frames(confirmations: int) -> None:
    outbox = Outbox()
    for number in range(confirmations):
        outbox.confirm(f"run-{number}")
    for number in range(1, 3_001):
        outbox.credit(number, Run(5), pressing=True)
    counts = []
    while (message := outbox.next_message(0.0)) is not None:
        counts.append(1 + len(message.more))
    assert counts == [1_025, 1_025, 950 + confirmations]

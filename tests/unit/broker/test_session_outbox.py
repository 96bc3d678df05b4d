"""What a session's stream has yet to tell: order, credit, batches, and what is dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from envtrio.v1 import env_service_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from env_broker.client_hop import HopBrokenError
from env_broker.framing import varint
from env_broker.session_outbox import MAX_ANSWERS, MAX_FRAMES, MESSAGE_BYTES, Outbox, Outlet

PLENTY = 2**40


class Waiter:
    """Who waits for a message to be written."""

    def __init__(self) -> None:
        self.written = False

    def set_result(self, _: None, /) -> None:
        assert not self.written
        self.written = True

    def done(self) -> bool:
        return self.written


@dataclass
class Reader:
    """A client, which reads what the outbox has."""

    outbox: Outbox = field(default_factory=lambda: Outbox(lambda: None))

    def next(self, *, written: bool = True) -> list[str]:
        """The frames of the next message, as words; none if nothing is due."""
        data = self.outbox.message()
        if data is None:
            return []
        if written:
            self.outbox.written()
        return [word(frame) for frame in frames_of(data)]


def frames_of(data: bytes) -> list[pb.SessionResponse]:
    message = pb.SessionResponse.FromString(data)
    assert all(not frame.more for frame in message.more)
    return [message, *message.more]


def word(frame: pb.SessionResponse) -> str:
    match frame.WhichOneof("frame"):
        case "run_admitted":
            return f"{frame.run_admitted.run_number} admitted"
        case "run_data":
            return f"{frame.run_data.run_number} {frame.run_data.data.decode()}"
        case "end_run":
            end = frame.end_run
            return f"{end.run_number} ends {end.code}{end.message}{end.status_details.decode()}"
        case "confirm_answers":
            return f"{len(frame.confirm_answers.answers)} answers"
    raise AssertionError(frame)


def sent(outlet: Outlet, data: bytes) -> Waiter:
    waiter = Waiter()
    outlet.send(data, waiter)
    return waiter


def test_what_is_due_leaves_together_in_its_order() -> None:
    reader = Reader()
    one, two = reader.outbox.outlet(7, PLENTY), reader.outbox.outlet(8, PLENTY)
    one.admit()
    waits = sent(one, b"a")
    two.admit()
    also = sent(two, b"b")
    assert reader.next(written=False) == ["7 admitted", "7 a", "8 admitted", "8 b"]
    assert not waits.written
    reader.outbox.written()
    assert (waits.written, also.written) == (True, True)
    sent(two, b"")
    one.end()
    assert reader.next() == ["8 ", "7 ends 0"]
    two.end(5, "words", b"details")
    assert reader.next() == ["8 ends 5wordsdetails"]
    assert reader.next() == []


def test_without_credit_nothing_of_the_run_leaves_and_all_of_the_others() -> None:
    reader = Reader()
    one, two = reader.outbox.outlet(1, 0), reader.outbox.outlet(2, 1)
    one.admit()
    held = sent(one, b"aa")
    sent(two, b"bbb")
    assert reader.next() == ["1 admitted", "2 bbb"], "while any is left, one may leave, whatever its size"
    late = sent(two, b"c")
    two.allow(2)
    assert reader.next() == [], "it is covered, and no more"
    one.allow(1)
    two.allow(1)
    assert reader.next(written=False) == ["1 aa", "2 c"]
    two.allow(5)
    one.allow(5)
    reader.outbox.written()
    assert (held.written, late.written) == (True, True)
    assert reader.next() == [], "nothing is sent twice"
    sent(one, b"d")
    assert reader.next() == ["1 d"]


def test_a_message_ends_before_it_gets_too_large_and_one_that_is_goes_alone() -> None:
    reader = Reader()
    outlets = [reader.outbox.outlet(number, PLENTY) for number in range(5)]
    for outlet, size in zip(outlets, (1, MESSAGE_BYTES + 1, 100_000, 100_000, 100_000), strict=True):
        sent(outlet, b"x" * size)
    told = [[frame.split()[0] for frame in reader.next()] for _ in range(4)]
    assert told == [["0"], ["1"], ["2", "3"], ["4"]]


def test_a_message_has_no_more_frames_than_it_may() -> None:
    reader = Reader()
    for number in range(MAX_FRAMES + 1):
        reader.outbox.outlet(number, 0).admit()
    assert reader.outbox.waiting == MAX_FRAMES + 1
    assert [len(reader.next()) for _ in range(3)] == [MAX_FRAMES, 1, 0]
    assert reader.outbox.waiting == 0


def test_answers_go_first_and_many_in_one_frame() -> None:
    reader = Reader()
    reader.outbox.outlet(1, 0).admit()
    for _ in range(MAX_ANSWERS + 1):
        reader.outbox.answer(pb.ConfirmAnswer(request_id="0" * 32))
    assert reader.outbox.answers == MAX_ANSWERS + 1
    assert reader.next() == [f"{MAX_ANSWERS} answers", "1 admitted"]
    assert reader.next() == ["1 answers"]
    assert reader.next() == []


def test_what_is_dropped_does_not_leave_unless_it_is_being_written() -> None:
    reader = Reader()
    early, late, stalled = [reader.outbox.outlet(number, credit) for number, credit in enumerate((9, 9, 0))]
    waits = sent(early, b"a")
    assert reader.next(written=False) == ["0 a"]
    dropped, held = sent(late, b"b"), sent(stalled, b"c")
    for outlet in (early, late, stalled):
        outlet.close()
    stalled.allow(9)
    reader.outbox.written()
    for outlet in (early, late, stalled):
        outlet.end(1)
    assert reader.next() == ["0 ends 1", "1 ends 1", "2 ends 1"]
    assert [waiter.written for waiter in (waits, dropped, held)] == [False] * 3
    with pytest.raises(RuntimeError, match="run 1 sends"):
        sent(late, b"d")


def test_an_end_never_leaves_with_the_message_before_it() -> None:
    reader = Reader()
    outlet = reader.outbox.outlet(1, PLENTY)
    dropped = sent(outlet, b"reply")
    outlet.end()
    assert reader.next() == ["1 ends 0"]
    assert not dropped.written
    assert reader.outbox.runs == 0


def test_a_run_has_one_message_on_its_way() -> None:
    reader = Reader()
    outlet = reader.outbox.outlet(3, PLENTY)
    sent(outlet, b"a")
    with pytest.raises(RuntimeError, match="run 3 sends while a message is on its way"):
        sent(outlet, b"b")
    assert reader.next(written=False) == ["3 a"]
    with pytest.raises(RuntimeError, match="run 3 sends while a message is on its way"):
        sent(outlet, b"b")


def test_a_stream_that_is_over_tells_nothing_more() -> None:
    news: list[int] = []
    outbox = Outbox(lambda: news.append(1))
    fresh, waiting = outbox.outlet(1, PLENTY), outbox.outlet(2, PLENTY)
    held = sent(waiting, b"a")
    outbox.answer(pb.ConfirmAnswer())
    outbox.close()
    count = len(news)
    outbox.answer(pb.ConfirmAnswer())
    waiting.end()
    outbox.written()
    assert (len(news), outbox.message(), held.written) == (count, None, False)
    assert (outbox.waiting, outbox.answers, outbox.runs) == (0, 0, 0)
    with pytest.raises(HopBrokenError, match="is over"):
        fresh.admit()
    with pytest.raises(HopBrokenError, match="is over"):
        sent(fresh, b"a")


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_framed_as_protobuf_frames_them(number: int) -> None:
    assert pb.RunAdmitted.FromString(b"\x08" + varint(number)).run_number == number
    assert (
        b"\x08" + varint(number) == pb.RunAdmitted(run_number=number or 1).SerializeToString() or not number
    )


@dataclass
class Told:
    """What was done to one run, and what a client saw of it."""

    outlet: Outlet
    credit: int
    waiter: Waiter | None = None
    taken: int = 0
    admitted: bool = False
    put: list[str] = field(default_factory=list)
    """What must leave, in order; from `ended` on some of it may be missing."""
    seen: list[str] = field(default_factory=list)
    ended: bool = False


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "send", "allow", "end", "close", "write", "written", "answer"]),
        st.integers(0, 3),
        st.sampled_from([0, 1, 5, 300, 70_000, MESSAGE_BYTES]),
    ),
    max_size=80,
)


@given(STEPS)
def test_whatever_happens_each_run_is_told_in_order_within_its_credit(
    steps: list[tuple[str, int, int]],
) -> None:
    outbox = Outbox(lambda: None)
    runs = [Told(outbox.outlet(number, 10 * number), 10 * number) for number in range(4)]
    writing, answers, answered = False, 0, 0

    def read() -> bool:
        nonlocal answered
        data = outbox.message()
        if data is None:
            return False
        frames = frames_of(data)
        assert len(frames) <= MAX_FRAMES
        assert len(frames) == 1 or len(data) < 1.1 * MESSAGE_BYTES
        of_runs = [frame.run_data.run_number for frame in frames if frame.HasField("run_data")]
        assert len(set(of_runs)) == len(of_runs), "one message of a run at a time"
        for frame in frames:
            match frame.WhichOneof("frame"):
                case "confirm_answers":
                    answered += len(frame.confirm_answers.answers)
                case "run_admitted":
                    runs[frame.run_admitted.run_number].seen.append("admitted")
                case "run_data":
                    run, data = runs[frame.run_data.run_number], frame.run_data.data
                    assert run.taken < run.credit, "nothing without credit"
                    run.taken += len(data)
                    run.seen.append(f"data {len(data)}")
                case "end_run":
                    assert frame.end_run.run_number not in of_runs, "not in the same message"
                    runs[frame.end_run.run_number].seen.append("end")
        return True

    for step, number, size in steps:
        run = runs[number]
        busy = run.waiter is not None and not run.waiter.written
        match step:
            case "admit" if not run.admitted and not run.ended and not run.put:
                run.admitted = True
                run.put.append("admitted")
                run.outlet.admit()
            case "send" if not busy and not run.ended:
                run.put.append(f"data {size}")
                run.waiter = sent(run.outlet, b"x" * size)
            case "allow":
                run.credit += size
                run.outlet.allow(size)
            case "close" if not run.ended:
                run.outlet.close()
                run.ended = True
            case "end" if "end" not in run.put:
                run.put.append("end")
                run.outlet.end()
                run.ended = True
            case "write" if not writing:
                writing = read()
            case "written" if writing:
                outbox.written()
                writing = False
            case "answer":
                answers += 1
                outbox.answer(pb.ConfirmAnswer())
    for run in runs:
        run.credit += PLENTY
        run.outlet.allow(PLENTY)
    if writing:
        outbox.written()
    while read():
        outbox.written()
    assert answered == answers
    assert outbox.waiting == 0
    for run in runs:
        if run.ended:
            dropped = [item for item in run.put if item not in run.seen]
            assert [item for item in run.put if item != dropped[0]] == run.seen if dropped else True
            assert len(dropped) <= 1
            assert run.seen[-1:] == ["end"] or "end" not in run.put
        else:
            assert run.seen == run.put
            assert run.waiter is None or run.waiter.written

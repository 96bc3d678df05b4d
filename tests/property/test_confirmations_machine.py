"""The client's confirmations under all events in every order.

The machine plays the runs, the session's streams and a server that answers what it likes, when it likes, also
after the stream or the run is gone. A model that knows no queues says what must have become of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from env_client.confirmations import MAX_BATCH, Confirmations, Verdict, pause_seconds

WINDOW = 8.0
IDS = [f"{number:032x}" for number in range(6)]
FINAL = [Verdict.CONFIRMED, Verdict.DISCARDED, Verdict.WORKER_LOST]


@dataclass
class Waiting:
    """A confirmation that has no final answer yet."""

    asked_at: float
    on_stream: bool = False
    ever_left: bool = False
    unknowns: int = 0
    not_before: float = 0.0


class ConfirmationsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.table = Confirmations(WINDOW)
        self.waiting: dict[str, Waiting] = {}

    @rule(request_id=st.sampled_from(IDS))
    def add(self, request_id: str) -> None:
        assert self.table.add(request_id, self.now) == (request_id not in self.waiting)
        self.waiting.setdefault(request_id, Waiting(self.now))

    @rule()
    def write(self) -> None:
        due = {
            request_id
            for request_id, one in self.waiting.items()
            if not one.on_stream and one.not_before <= self.now
        }
        assert self.table.has_ready(self.now) == bool(due)
        batch = self.table.take_batch(self.now)
        # Each once, all that may leave, and nothing that is on its way, withdrawn, or to be left in peace.
        assert len(batch) == len(set(batch)) <= MAX_BATCH
        assert set(batch) == due
        for request_id in batch:
            one = self.waiting[request_id]
            one.on_stream = one.ever_left = True

    @rule(request_id=st.sampled_from(IDS), verdict=st.sampled_from(FINAL))
    def answered(self, request_id: str, verdict: Verdict) -> None:
        settled = self.waiting.pop(request_id, None) is not None
        assert self.table.answer(request_id, verdict, self.now) == settled

    @rule(request_id=st.sampled_from(IDS))
    def not_known(self, request_id: str) -> None:
        assert not self.table.answer(request_id, None, self.now)
        one = self.waiting.get(request_id)
        if one is not None and one.on_stream:
            one.on_stream = False
            one.unknowns += 1
            one.not_before = self.now + pause_seconds(one.unknowns)

    @rule()
    def disconnected(self) -> None:
        self.table.disconnected()
        for one in self.waiting.values():
            one.on_stream = False

    @rule(request_id=st.sampled_from(IDS))
    def withdrawn(self, request_id: str) -> None:
        one = self.waiting.pop(request_id, None)
        assert self.table.withdraw(request_id) == (one is not None and not one.ever_left)

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.3, 1.0, WINDOW / 2, WINDOW]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def windows_end(self) -> None:
        over = [run for run, one in self.waiting.items() if self.now >= one.asked_at + WINDOW]
        assert self.table.expire(self.now) == over
        for request_id in over:
            del self.waiting[request_id]
        wake_at = self.table.wake_at()
        assert wake_at is None or wake_at > self.now, "whoever sleeps until then would not sleep"

    @precondition(lambda self: self.waiting)
    @rule()
    def all_end(self) -> None:
        assert self.table.clear() == list(self.waiting)
        self.waiting.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.table) == len(self.waiting)
        assert self.table.in_flight == sum(one.on_stream for one in self.waiting.values())

    @invariant()
    def is_woken_in_time(self) -> None:
        """Who sleeps until `wake_at` misses no expiry and no repetition."""
        times = [one.asked_at + WINDOW for one in self.waiting.values()]
        times += [one.not_before for one in self.waiting.values() if one.not_before > self.now]
        if times:
            wake_at = self.table.wake_at()
            assert wake_at is not None
            assert wake_at <= min(times)


ConfirmationsMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestConfirmations = ConfirmationsMachine.TestCase

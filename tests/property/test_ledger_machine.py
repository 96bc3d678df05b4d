"""The ledger and the run table under all events in every order.

The machine plays the run's task, its hook threads and the world outside, each of which may do whatever it
could do at that moment, knowing nothing of the others; what really happened to each episode is recorded, and
the promises are checked on the record.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from env_worker.domain.ledger import CancelOutcome, Entry, Event, LedgerError, State
from env_worker.domain.runs import ConfirmOutcome, DuplicateRequestError, RunTable, TableFullError

WINDOW = 60.0
LIMIT, WINDOW_LIMIT, KNOWN_LIMIT, REMEMBERED_LIMIT = 2, 2, 3, 1
IDS = [f"{number:032x}" for number in range(4)]
SESSIONS = ["s1", "s2"]
OUTSIDE = [
    Event.CANCEL,
    Event.DEADLINE,
    Event.CALLER_LOST,
    Event.SESSION_LOST,
    Event.STOP,
    Event.BROKEN,
    Event.SEND_FAILED,
    Event.ENCODE_FAILED,
    Event.CONFIRM,
]


@dataclass
class Record:
    """What really happened to one run."""

    entry: Entry
    hook: bool = True
    keeps: int = 0
    keeping: bool = False
    discards: int = 0
    discarding: bool = False
    replied: bool = False
    settlement: tuple[Event, CancelOutcome] | None = None
    closed_at: float | None = None


class LedgerMachine(RuleBasedStateMachine):
    runs: Bundle[Record] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = RunTable(
            limit=LIMIT,
            window_limit=WINDOW_LIMIT,
            known_limit=KNOWN_LIMIT,
            remembered_limit=REMEMBERED_LIMIT,
            late_cancel_seconds=WINDOW,
        )
        self.records: list[Record] = []
        self.remembered: dict[str, float] = {}

    def settle(self, record: Record, event: Event) -> bool:
        won = self.table.settle(record.entry, event, self.now)
        self.look(record)
        return won

    def look(self, record: Record) -> None:
        """Check that a settlement is made once, and is the truth."""
        entry = record.entry
        if entry.cause is not None and entry.outcome is not None:
            if record.settlement is None:
                record.settlement = (entry.cause, entry.outcome)
                truth = {
                    (False, False): CancelOutcome.ABORTED,
                    (True, False): CancelOutcome.DISCARDED,
                    (True, True): CancelOutcome.TOO_LATE,
                }[record.replied, entry.delivered]
                assert entry.outcome is truth, "broke CancelTruthful"
            assert record.settlement == (entry.cause, entry.outcome), "broke SettledOnce"
        if entry.closed and record.closed_at is None:
            record.closed_at = self.now

    def known(self, request_id: str) -> Record | None:
        """The run that the table must still know by that id."""
        for record in self.records:
            if record.entry.request_id == request_id and (
                record.closed_at is None or self.now < record.closed_at + 2 * WINDOW
            ):
                return record
        return None

    @rule(
        target=runs,
        request_id=st.sampled_from(IDS),
        session_id=st.sampled_from(SESSIONS),
        hook=st.sampled_from([True, True, False]),
        steps=st.integers(0, 3),
    )
    def admit(self, request_id: str, session_id: str, hook: bool, steps: int):  # type: ignore[no-untyped-def]
        known = self.known(request_id)
        try:
            entry = self.table.admit(request_id, session_id, self.now)
        except DuplicateRequestError:
            assert known is not None, "a fresh id was refused"
            return multiple()
        except TableFullError:
            windows = self.table.open_windows
            live = sum(record.closed_at is None for record in self.records) - windows
            known = sum(self.known(name) is not None for name in IDS)
            assert live >= LIMIT or windows >= WINDOW_LIMIT or known >= KNOWN_LIMIT
            return multiple()
        assert known is None, "an id that is known was admitted"
        record = Record(entry, hook)
        self.records.append(record)
        cancelled = self.now < self.remembered.pop(request_id, self.now)
        assert entry.settled is cancelled, "broke: a remembered cancel applies to its run, and no other does"
        self.look(record)
        self.run_goes_on(record, steps)  # or else few runs would get as far as their keep
        return record

    # The run's own task and its hook threads.

    @rule(record=runs, steps=st.integers(1, 3))
    def run_goes_on(self, record: Record, steps: int) -> None:
        """The task's next steps, which it takes without knowing whether the run was ended meanwhile."""
        for _ in range(steps):
            state = record.entry.state
            if state is State.QUEUED:
                self.settle(record, Event.STARTED)
            elif state in (State.RUNNING, State.ABORTED) and not record.hook:
                self.settle(record, Event.FINISHED_UNKEPT)
            elif state in (State.RUNNING, State.ABORTED):
                if self.settle(record, Event.FINISHED):
                    record.keeps += 1
                    record.keeping = True
            elif not record.keeping and not record.replied and not record.entry.delivered:
                record.replied = self.settle(record, Event.REPLIED)

    @rule(record=runs, failure=st.sampled_from([Event.ENVIRONMENT_FAILED, Event.REFUSED]))
    def run_fails(self, record: Record, failure: Event) -> None:
        if record.entry.state in (State.RUNNING, State.ABORTED):
            self.settle(record, failure)

    @rule(record=runs, end=st.sampled_from([Event.KEEP_RETURNED, Event.KEEP_RAISED]))
    def keep_ends(self, record: Record, end: Event) -> None:
        if record.keeping:
            record.keeping = False
            assert self.settle(record, end)

    @rule(record=runs)
    def somebody_claims_the_discard(self, record: Record) -> None:
        due = record.entry.discard_due
        try:
            won = self.settle(record, Event.DISCARD_BEGAN)
        except LedgerError:
            won = False
        assert won is due
        if won:
            record.discards += 1
            record.discarding = True

    @rule(record=runs, end=st.sampled_from([Event.DISCARD_RETURNED, Event.DISCARD_RAISED]))
    def discard_ends(self, record: Record, end: Event) -> None:
        if record.discarding:
            record.discarding = False
            assert self.settle(record, end)

    # The world outside.

    @rule(record=runs, event=st.sampled_from(OUTSIDE))
    def something_happens(self, record: Record, event: Event) -> None:
        open_before = not record.entry.settled
        won = self.settle(record, event)
        assert not won or open_before, "broke SettledOnce"

    @rule(record=runs, event=st.sampled_from(list(Event)))
    def a_bug_sends_an_impossible_event(self, record: Record, event: Event) -> None:
        before = (record.entry.state, record.entry.cause, record.entry.outcome)
        twin = Entry(record.entry.request_id)
        twin.state, twin.cause, twin.outcome = before
        try:
            twin.settle(event)
        except LedgerError:
            with pytest.raises(LedgerError):
                self.settle(record, event)
            assert (record.entry.state, record.entry.cause, record.entry.outcome) == before

    @rule(request_id=st.sampled_from(IDS))
    def cancel(self, request_id: str) -> None:
        record = self.known(request_id)
        try:
            outcome = self.table.cancel(request_id, self.now)
        except TableFullError:
            assert record is None
            return
        if record is None:
            assert outcome is CancelOutcome.REMEMBERED
            self.remembered[request_id] = self.now + WINDOW
            return
        self.look(record)
        assert record.settlement is not None
        assert outcome is record.settlement[1], "broke CancelStable"

    @rule(request_id=st.sampled_from(IDS))
    def confirm(self, request_id: str) -> None:
        record = self.known(request_id)
        outcome = self.table.confirm(request_id, self.now)
        if record is None:
            assert outcome is ConfirmOutcome.UNKNOWN
            return
        self.look(record)
        if record.settlement is None:
            assert outcome is ConfirmOutcome.UNKNOWN
        else:
            delivered = record.settlement[1] is CancelOutcome.TOO_LATE
            assert outcome is (ConfirmOutcome.CONFIRMED if delivered else ConfirmOutcome.DISCARDED)

    @precondition(lambda self: len(self.records) > 1)
    @rule(session_id=st.sampled_from(SESSIONS))
    def session_is_lost(self, session_id: str) -> None:
        moved = self.table.settle_all(Event.SESSION_LOST, self.now, session_id=session_id)
        assert all(entry.session_id == session_id for entry in moved)
        for record in self.records:
            self.look(record)

    @precondition(lambda self: len(self.records) > 1)
    @rule()
    def sigterm(self) -> None:
        self.table.settle_all(Event.STOP, self.now)
        for record in self.records:
            self.look(record)

    @rule(seconds=st.sampled_from([1.0, WINDOW / 2, WINDOW, 2 * WINDOW]), expire=st.booleans())
    def time_passes(self, seconds: float, expire: bool) -> None:
        self.now += seconds
        self.remembered = {name: ends for name, ends in self.remembered.items() if self.now < ends}
        if expire:
            for entry in self.table.expire(self.now):
                assert entry.window_ends is not None
                assert entry.window_ends <= self.now
                assert entry.state is State.EXPIRED
            for record in self.records:
                self.look(record)
                assert not (record.entry.replied and (record.entry.window_ends or 0) <= self.now)

    def finish(self, record: Record) -> None:
        """Let one run come to its end with nobody cancelling."""
        if record.keeping:
            self.keep_ends(record, Event.KEEP_RETURNED)
        elif record.discarding:
            self.discard_ends(record, Event.DISCARD_RETURNED)
        elif record.entry.discard_due:
            self.somebody_claims_the_discard(record)
        elif record.entry.replied:
            self.time_passes(WINDOW, True)
        else:
            self.run_goes_on(record, 1)

    @invariant()
    def promises_hold(self) -> None:
        for record in self.records:
            entry = record.entry
            assert record.keeps <= 1, "broke: keep is called once"
            assert record.discards <= 1, "broke: at most one discard"
            assert record.discards <= record.keeps, "broke: no discard of what was not kept"
            assert not (record.keeping and (entry.discard_due or record.discards)), (
                "broke: never while keep runs"
            )
            assert not (entry.delivered and (record.discards or entry.discard_due)), (
                "broke: delivered xor discarded"
            )
            if entry.closed and record.keeps:
                assert entry.delivered is (record.discards == 0), "broke: delivered xor discarded"

    @invariant()
    def memory_is_bounded(self) -> None:
        table = self.table
        assert len(table) < LIMIT + WINDOW_LIMIT
        assert len(table) + len(table._tombstones) <= KNOWN_LIMIT
        assert len(table._remembered) <= REMEMBERED_LIMIT
        assert table.open_windows == sum(entry.replied for entry in table.entries())

    def teardown(self) -> None:
        for record in self.records:
            for _ in range(10):  # a run that takes more steps to its end hangs
                if not record.entry.closed:
                    self.finish(record)
            assert record.entry.closed, "broke: nothing is left behind"
        self.promises_hold()
        self.table.expire(self.now + 2 * WINDOW)
        assert len(self.table) == len(self.table._tombstones) == len(self.table._remembered) == 0


LedgerMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestLedger = LedgerMachine.TestCase

"""The broker's routes under all events in every order, in front of workers that tell the truth.

The machine plays callers, workers and the hops between them, and records what each run's client was told and
what its worker did with the episode. The promises are checked on the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from env_broker.route import (
    Action,
    CancelOutcome,
    ConfirmOutcome,
    DuplicateRouteError,
    RoutesFullError,
    RouteState,
)
from env_broker.routes import RETENTION_MARGIN_SECONDS, RouteTable

WINDOW = 60.0
RETAINED = WINDOW + RETENTION_MARGIN_SECONDS
LIMIT, RETAINED_LIMIT, KNOWN_LIMIT, REMEMBERED_LIMIT = 2, 2, 2, 1
IDS = [f"{number:032x}" for number in range(3)]
WORKERS = ["w1", "w2"]

ids = st.sampled_from(IDS)


class Held(Enum):
    """What the worker did with a run."""

    UNSEEN = auto()
    LIVE = auto()
    REPLIED = auto()
    ABORTED = auto()
    DISCARDED = auto()
    DELIVERED = auto()


@dataclass
class Record:
    """What really happened to one run."""

    worker: str | None = None
    held: Held = Held.UNSEEN
    told_ok: bool = False
    answer: CancelOutcome | None = None
    over_at: float | None = None
    cancel_sent: bool = False
    owed: bool = False
    """Its session was lost while it could be taken back: it must be, if the worker can be told in time."""
    insists: bool = False
    """The broker's own cancel of it had no answer, and is tried again."""
    confirmed: ConfirmOutcome | None = None


class RoutesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = RouteTable(
            limit=LIMIT,
            retained_limit=RETAINED_LIMIT,
            known_limit=KNOWN_LIMIT,
            remembered_limit=REMEMBERED_LIMIT,
            window=WINDOW,
        )
        self.records: dict[str, Record] = {}
        self.remembered: dict[str, float] = {}
        self.away: set[str] = set()

    def session_of(self, request_id: str) -> str:
        """The session of the run by that id."""
        return ""

    def known(self, request_id: str) -> Record | None:
        """The run that the table must still know by that id."""
        record = self.records.get(request_id)
        if record is None or (record.over_at is not None and self.now >= record.over_at + 2 * WINDOW):
            return None
        return record

    def at(self, request_id: str, state: RouteState) -> Record | None:
        """The run, where its stream is open and it is in that state."""
        route = self.table.get(request_id)
        return self.records[request_id] if route and route.open and route.state is state else None

    @rule(request_id=ids, worker=st.sampled_from(WORKERS), way=st.integers(0, 5))
    def queue(self, request_id: str, worker: str, way: int) -> None:
        known = self.known(request_id)
        try:
            admitted = self.table.queue(request_id, self.session_of(request_id), self.now)
        except DuplicateRouteError:
            assert known is not None, "a fresh id was refused"
            return
        except RoutesFullError:
            return
        assert known is None, "an id that is known was admitted"
        cancelled = self.now < self.remembered.pop(request_id, self.now)
        assert admitted is not cancelled, "broke: a remembered cancel applies to its run, and no other does"
        self.records[request_id] = Record(answer=None if admitted else CancelOutcome.ABORTED)
        if way >= 1:  # or else few runs would get as far as their reply
            self.place(request_id, worker, 2 <= way <= 4)
        if way == 3:
            self.worker_replies(request_id, "ok")
        elif way == 4:
            self.cancel_meets_the_reply_on_its_way(request_id)
        elif way == 5:
            self.cancel(request_id, True)
            self.worker_does_not_admit(request_id, True)

    @rule(request_id=ids, worker=st.sampled_from(WORKERS), arrives=st.booleans())
    def place(self, request_id: str, worker: str, arrives: bool) -> None:
        record = self.at(request_id, RouteState.QUEUED)
        if record is None or worker in self.away:
            return
        assert record.answer is None, "broke: what was cancelled is not placed"
        placed = self.table.place(request_id, worker)
        assert placed is not record.cancel_sent, "broke: what was cancelled elsewhere is not placed"
        if not placed:
            self.run_ends_without_a_reply(request_id)
            return
        record.worker = worker
        record.held = Held.LIVE if arrives else Held.UNSEEN

    @rule(request_id=ids, again=st.booleans())
    def worker_does_not_admit(self, request_id: str, again: bool) -> None:
        record = self.at(request_id, RouteState.PLACED)
        if record is None or record.held is not Held.UNSEEN:
            return
        if again:
            waits = self.table.unplace(request_id, self.now)
            assert waits is not record.cancel_sent, "broke: what was cancelled elsewhere is not placed"
            record.worker = None
        elif self.table.withdraw(request_id, self.now):
            del self.records[request_id]

    @rule(request_id=ids)
    def worker_admits(self, request_id: str) -> None:
        record = self.at(request_id, RouteState.PLACED)
        if record is not None and record.held is Held.UNSEEN and record.worker not in self.away:
            route = self.table.get(request_id)
            assert route is not None
            record.held = Held.ABORTED if route.cancelled else Held.LIVE  # it had remembered the cancel

    @rule(request_id=ids, passes=st.sampled_from(["ok", "cut", "on its way"]))
    def worker_replies(self, request_id: str, passes: str) -> None:
        record = self.records.get(request_id)
        if record is None or record.held is not Held.LIVE:
            return
        record.held = Held.REPLIED
        if passes == "cut":
            self.hop_breaks(request_id)
        elif passes == "ok":
            self.reply_passes(request_id)

    @rule(request_id=ids)
    def reply_passes(self, request_id: str) -> None:
        record = self.at(request_id, RouteState.PLACED)
        if record is None or record.held not in (Held.REPLIED, Held.DISCARDED, Held.DELIVERED):
            return
        if self.table.replied(request_id, self.now, WINDOW):
            assert record.answer in (None, CancelOutcome.TOO_LATE), "broke: told OK after it was taken back"
            record.told_ok = True

    @rule(request_id=ids)
    def hop_breaks(self, request_id: str) -> None:
        if self.at(request_id, RouteState.PLACED) is not None:
            assert self.table.cut(request_id, self.now, WINDOW)

    @rule(request_id=ids)
    def run_ends_without_a_reply(self, request_id: str) -> None:
        route = self.table.get(request_id)
        record = self.records.get(request_id)
        if route is None or record is None:
            assert not self.table.ended(request_id, self.now)
        elif record.held in (Held.UNSEEN, Held.LIVE, Held.ABORTED):
            was_open = route.open
            record.held = Held.ABORTED
            assert self.table.ended(request_id, self.now) is was_open

    @rule(request_id=ids, answered=st.booleans())
    def cancel(self, request_id: str, answered: bool) -> None:
        record = self.known(request_id)
        try:
            decision = self.table.cancel(request_id, self.now)
        except RoutesFullError:
            assert record is None
            return
        if record is None:
            assert decision.action is Action.REMEMBER
            self.remembered[request_id] = self.now + WINDOW
            return
        assert decision.action is not Action.REMEMBER, "broke: a known run is not forgotten"
        outcome = decision.outcome
        if decision.action is Action.FORWARD:
            assert decision.worker == record.worker is not None, "broke: the worker that has or had the run"
            record.cancel_sent = True
            if not answered or record.worker in self.away:
                return
            outcome = self.ask_worker(record)
            self.table.answered(request_id, outcome, self.now)
            if outcome is CancelOutcome.REMEMBERED:
                return
        if outcome is CancelOutcome.REMEMBERED:
            assert record.cancel_sent, "broke: only of what no worker has answered nothing is known"
            assert record.over_at is not None, "broke: a retained run is known"
            assert record.answer is None, "broke CancelStable"
            return
        if decision.worker_lost and self.table.get(request_id) is not None:
            assert record.worker in self.away, "broke: its worker came back"
            record.cancel_sent = True
            return  # that worker is told when it is back, and its answer counts
        assert record.answer in (None, outcome), "broke CancelStable"
        if decision.worker_lost:
            over = record.over_at is not None  # what was so at the end of its retention stays so
            assert over or record.answer is not None or record.worker in self.away, (
                "broke: its worker came back"
            )
        record.answer = outcome
        if outcome is CancelOutcome.ABORTED:
            assert not record.told_ok, "broke CancelTruthful"
        elif outcome is CancelOutcome.DISCARDED:
            assert record.held is Held.DISCARDED, "broke CancelTruthful"
        else:
            assert record.told_ok or record.held is Held.DELIVERED, "broke CancelTruthful"

    def ask_worker(self, record: Record) -> CancelOutcome:
        if record.held is Held.LIVE:
            record.held = Held.ABORTED
        elif record.held is Held.REPLIED:
            record.held = Held.DISCARDED
        return {
            Held.UNSEEN: CancelOutcome.REMEMBERED,
            Held.ABORTED: CancelOutcome.ABORTED,
            Held.DISCARDED: CancelOutcome.DISCARDED,
            Held.DELIVERED: CancelOutcome.TOO_LATE,
        }[record.held]

    @rule(request_id=ids)
    def confirmed_or_expired_at_the_worker(self, request_id: str) -> None:
        record = self.records.get(request_id)
        if record is not None and record.held is Held.REPLIED and record.worker not in self.away:
            record.held = Held.DELIVERED

    @rule(worker=st.sampled_from(WORKERS))
    def worker_is_lost(self, worker: str) -> None:
        self.away.add(worker)
        for request_id in self.table.lose(worker, self.now):
            assert not self.records[request_id].told_ok
            assert self.table.get(request_id) is None
            self.records[request_id].answer = self.records[request_id].answer or CancelOutcome.ABORTED

    @rule(worker=st.sampled_from(WORKERS))
    def worker_comes_back(self, worker: str) -> None:
        self.away.discard(worker)
        self.table.returned(worker)
        for request_id, record in list(self.records.items()):
            if record.worker != worker or record.held not in (Held.LIVE, Held.REPLIED):
                continue
            known = self.known(request_id)
            try:
                apply = self.table.adopt(
                    request_id,
                    self.session_of(request_id),
                    worker,
                    self.now,
                    replied=record.held is Held.REPLIED,
                    window=WINDOW,
                )
            except RoutesFullError:
                assert known is None
                continue
            if known is None:
                apply_expected = self.now < self.remembered.pop(request_id, self.now)
                assert apply is apply_expected, "broke: a remembered cancel applies to a reported run"
                record.over_at, record.answer, record.confirmed = None, None, None
                record.owed = record.insists = False  # what was owed is forgotten with the rest
                record.cancel_sent = apply
                record.told_ok = record.held is Held.REPLIED
            elif record.cancel_sent and record.answer is None:
                assert apply, "broke: a cancel that was not answered is sent again"
            if record.answer is CancelOutcome.ABORTED:
                assert apply, "broke: what was given up is discarded when its worker comes back"
            if record.answer is CancelOutcome.TOO_LATE:
                assert not apply, "broke: what is delivered for good is not taken back"
            if apply:
                outcome = self.ask_worker(record)
                stays = self.table.answered(request_id, outcome, self.now)
                assert record.answer in (None, stays), "broke CancelStable"
                record.answer = stays

    @rule(worker=st.sampled_from(WORKERS), request_id=ids, before=st.booleans(), away=st.booleans())
    def worker_blinks(self, worker: str, request_id: str, before: bool, away: bool) -> None:
        if before:
            self.cancel(request_id, False)
        self.worker_is_lost(worker)
        if away:
            self.cancel(request_id, False)
        self.worker_comes_back(worker)
        self.cancel(request_id, True)

    @rule(request_id=ids)
    def cancel_meets_the_reply_on_its_way(self, request_id: str) -> None:
        self.worker_replies(request_id, "on its way")
        self.cancel(request_id, True)
        self.reply_passes(request_id)

    def note_what_is_over(self) -> None:
        for name, record in self.records.items():
            if record.over_at is None and self.table.get(name) is None:
                record.over_at = self.now

    @rule(seconds=st.sampled_from([1.0, WINDOW / 2, RETAINED, 2 * WINDOW]))
    def time_passes(self, seconds: float) -> None:
        self.note_what_is_over()
        retained = [name for name in IDS if self.table.get(name) is not None]
        self.now += seconds
        self.remembered = {name: ends for name, ends in self.remembered.items() if self.now < ends}
        self.table.expire(self.now)
        for name in IDS:
            route = self.table.get(name)
            assert route is None or route.open or self.now < route.until
            if route is None and name in retained and self.records[name].insists:
                self.records[name].owed = False  # no try has reached its worker in time
        self.note_what_is_over()

    @invariant()
    def memory_is_bounded(self) -> None:
        table = self.table
        self.note_what_is_over()
        assert len(table) < LIMIT + RETAINED_LIMIT
        assert len(table) + len(table._tombstones) <= KNOWN_LIMIT
        assert len(table._remembered._ends) <= REMEMBERED_LIMIT
        assert len(table._retained) == sum(
            not route.open for name in IDS if (route := table.get(name)) is not None
        )

    def teardown(self) -> None:
        for name in IDS:
            self.table.ended(name, self.now)
        self.table.expire(self.now + RETAINED)
        self.table.expire(self.now + RETAINED + 2 * WINDOW)
        assert len(self.table) == len(self.table._tombstones) == len(self.table._remembered._ends) == 0


RoutesMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestRoutes = RoutesMachine.TestCase

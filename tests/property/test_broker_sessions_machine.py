"""Routes and sessions of the broker together, under all events in every order.

It adds clients to the machine of the routes: they open sessions, lose them, come back with any epoch, say
goodbye, and confirm. Whatever comes first, a confirmation and a Cancel tell the same, and a lost session
leaves nothing behind at a worker that can be asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from env_broker.route import CancelOutcome, ConfirmOutcome, RouteState
from env_broker.sessions import MEMORY_SECONDS, SessionsFullError, SessionTable, SupersededError
from tests.property.test_routes_machine import IDS, RETAINED, WINDOW, WORKERS, Held, Record, RoutesMachine

GRACE = 3.0
SESSIONS = ["a" * 32, "b" * 32]

ids = st.sampled_from(IDS)
sessions = st.sampled_from(SESSIONS)
WAYS = ["answered", "lost", "answer lost", "not yet"]
"""What may become of the broker's own Cancel on its way to a worker and back."""
ways = st.lists(st.sampled_from(WAYS), min_size=len(IDS), max_size=len(IDS))


@dataclass
class Client:
    """What really happened to a session."""

    highest: int = 0
    owner: int | None = None
    lost_at: float | None = None
    over_at: float | None = None
    lost: bool = False


class BrokerSessionsMachine(RoutesMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sessions = SessionTable(grace=GRACE, limit=1)
        self.clients = {name: Client() for name in SESSIONS}

    def session_of(self, request_id: str) -> str:
        return ["", *SESSIONS][IDS.index(request_id)]

    @rule(name=sessions, step=st.integers(-1, 2))
    def stream_opens(self, name: str, step: int) -> None:
        client = self.clients[name]
        if client.over_at is not None and self.now >= client.over_at + MEMORY_SECONDS:
            client.highest = 0
        epoch = max(1, client.highest + step)
        try:
            self.sessions.open(name, epoch, self.now)
        except SupersededError:
            assert epoch <= client.highest, "broke: the highest epoch owns the session"
            return
        except SessionsFullError:
            assert client.owner is None
            assert client.lost_at is None
            return
        # What is over may have been forgotten, as far as the bound demands.
        assert epoch > client.highest or client.over_at is not None, "broke: the highest epoch owns it"
        self.clients[name] = Client(highest=epoch, owner=epoch)

    @rule(name=sessions, age=st.integers(0, 2), said=st.booleans())
    def stream_ends(self, name: str, age: int, said: bool) -> None:
        client = self.clients[name]
        epoch = client.highest - age
        ended = (self.sessions.goodbye if said else self.sessions.end)(name, epoch, self.now)
        assert ended is (client.owner == epoch), "broke: the end of an older stream means nothing"
        if ended:
            client.owner = None
            client.lost_at, client.over_at = (None, self.now) if said else (self.now + GRACE, None)
            client.lost = False

    @rule(name=sessions)
    def a_run_names_it(self, name: str) -> None:
        client = self.clients[name]
        was_lost = client.lost and client.over_at is not None and self.now < client.over_at + MEMORY_SECONDS
        if self.sessions.expect(name, self.now):
            assert was_lost, "broke: only a session that was lost has a grace again"
            client.lost_at, client.over_at, client.lost = self.now + GRACE, None, False
        elif was_lost:
            assert len(self.sessions) + len(self.sessions._over) > 0, "broke: it makes room for others only"

    @rule(seconds=st.sampled_from([0.0, 1.0, GRACE]), cancels=ways)
    def graces_run_out(self, seconds: float, cancels: list[str]) -> None:
        self.note_what_is_over()  # a rule of several steps has not, and it was over before
        self.now += seconds
        due = {n for n, c in self.clients.items() if c.lost_at is not None and c.lost_at <= self.now}
        lost = self.sessions.lost(self.now)
        assert set(lost) == due, "broke: lost is what did not come back in its grace, and no other"
        for name in lost:
            client = self.clients[name]
            client.lost_at, client.over_at, client.lost = None, self.now, True
        runs = self.table.lose_sessions(lost)
        assert {self.session_of(run) for run in runs} <= due, "broke: others' runs are left alone"
        for name in IDS:
            route, record = self.table.get(name), self.records.get(name)
            if (
                route is not None
                and record is not None
                and self.session_of(name) in due
                and route.answer is None
            ):
                record.cancel_sent = record.owed = True
        for run in runs:
            self.records[run].insists = True
            self.own_cancel(run, cancels[IDS.index(run)])
        for name, record in self.records.items():
            # What the table has forgotten is owed no more: a full one does not take it up again.
            if record.owed and not record.insists and record.worker not in self.away and self.known(name):
                self.nothing_is_left(record)

    @rule(request_id=ids, way=st.sampled_from(WAYS))
    def own_cancel(self, request_id: str, way: str) -> None:
        """One try of the broker's own Cancel of a run whose session was lost."""
        record = self.known(request_id)
        if record is None or not record.insists or way == "not yet":
            return
        route = self.table.get(request_id)
        asks = route is not None and route.state is not RouteState.QUEUED and not route.worker_lost
        asks = asks and route is not None and route.answer is None
        self.cancel(request_id, way == "answered")
        if asks and way == "answer lost" and record.worker not in self.away:
            self.ask_worker(record)
        record.insists = asks and (way != "answered" or record.worker in self.away)

    def nothing_is_left(self, record: Record) -> None:
        assert record.held is not Held.LIVE, "broke: a lost session leaves no live run"
        assert record.held is not Held.REPLIED, "broke: a lost session leaves no unconfirmed reply"

    @rule(request_id=ids, arrives=st.booleans(), cancel_comes_between=st.booleans())
    def confirm(self, request_id: str, arrives: bool, cancel_comes_between: bool) -> None:
        record = self.known(request_id)
        outcome = self.table.confirm(request_id, self.now)
        if record is None:
            assert outcome is ConfirmOutcome.UNKNOWN
            return
        if outcome is None:
            route = self.table.get(request_id)
            assert route is not None
            assert route.state is RouteState.REPLIED
            assert route.worker == record.worker not in self.away, "broke: the worker that replied is asked"
            if cancel_comes_between:
                self.cancel(request_id, True)
            if not arrives:
                return
            outcome = self.worker_confirms(record)
            self.table.confirmed(request_id, outcome, self.now)
            assert self.table.get(request_id) is None, "broke: of a decided route a tombstone is kept"
            assert self.table.confirm(request_id, self.now) is outcome
            later = self.table.cancel(request_id, self.now).outcome
            assert record.answer in (None, later), "broke: cancel and confirmation tell the same"
            record.answer = later
        self.told(record, outcome)

    def worker_confirms(self, record: Record) -> ConfirmOutcome:
        if record.held is Held.REPLIED:
            record.held = Held.DELIVERED
        return {
            Held.DISCARDED: ConfirmOutcome.DISCARDED,
            Held.DELIVERED: ConfirmOutcome.CONFIRMED,
        }[record.held]

    def told(self, record: Record, outcome: ConfirmOutcome) -> None:
        decided = outcome in (ConfirmOutcome.CONFIRMED, ConfirmOutcome.DISCARDED)
        if record.confirmed is not None and decided:
            assert outcome is record.confirmed, "broke: one outcome for all confirmations of a run"
        if outcome is ConfirmOutcome.CONFIRMED:
            over = record.over_at is not None and record.told_ok  # its retention is over, so is its window
            assert record.held is not Held.DISCARDED, "broke: what was taken back is not confirmed"
            assert record.held is Held.DELIVERED or over, "broke: CONFIRMED is delivered for good"
            assert record.answer in (None, CancelOutcome.TOO_LATE)
        elif outcome is ConfirmOutcome.DISCARDED:
            assert record.held is Held.DISCARDED or not record.told_ok, "broke: DISCARDED is taken back"
            assert record.answer is not CancelOutcome.TOO_LATE
        elif outcome is ConfirmOutcome.WORKER_LOST:
            assert record.worker in self.away or record.over_at is not None or record.answer is not None
        else:
            unanswered = record.cancel_sent and record.over_at is not None
            assert not record.told_ok or unanswered, "broke: a reply that passed is known"
        if decided:
            record.confirmed = outcome

    @rule(
        request_id=ids,
        worker=st.sampled_from(WORKERS),
        then=st.lists(
            st.sampled_from(
                [
                    "confirm",
                    "cancel",
                    "meet",
                    "session lost",
                    "tried again",
                    "retention over",
                    "session back",
                    "worker lost",
                    "worker back",
                    "both away",
                    "session, then worker",
                ]
            ),
            min_size=1,
            max_size=5,
        ),
        way=st.booleans(),
        cancels=ways,
    )
    def a_reply_passes_and_then(
        self, request_id: str, worker: str, then: list[str], way: bool, cancels: list[str]
    ) -> None:
        """Few runs would get that far, and meet what matters, by single steps."""
        name = self.session_of(request_id) or SESSIONS[0]
        self.worker_comes_back(worker)
        self.stream_opens(name, 1)
        self.queue(request_id, worker, 3)
        for event in then:
            match event:
                case "confirm":
                    self.confirm(request_id, way, False)
                case "cancel":
                    self.cancel(request_id, way)
                case "meet":
                    self.cancel_and_confirm_meet(request_id, way, not way)
                case "session lost":
                    self.stream_ends(name, 0, False)
                    self.graces_run_out(GRACE, cancels)
                case "tried again":
                    self.own_cancel(request_id, cancels[0])
                case "retention over":
                    self.time_passes(RETAINED)
                case "session back":
                    self.stream_opens(name, 1)
                case "worker lost":
                    self.worker_is_lost(worker)
                case "worker back":
                    self.worker_comes_back(worker)
                case "session, then worker":
                    self.stream_ends(name, 0, False)
                    self.graces_run_out(GRACE, cancels)
                    self.worker_is_lost(worker)
                    self.own_cancel(request_id, cancels[0])
                case "both away":
                    self.worker_is_lost(worker)
                    self.stream_ends(name, 0, False)
                    self.graces_run_out(GRACE, cancels)
                    self.worker_comes_back(worker)

    @rule(request_id=ids, confirm_first=st.booleans(), answers_cross=st.booleans())
    def cancel_and_confirm_meet(self, request_id: str, confirm_first: bool, answers_cross: bool) -> None:
        """Both decided here before either is answered by the worker, which takes them in one order.

        They have two calls, so their answers may cross.
        """
        self.worker_replies(request_id, "ok")
        record, route = self.records.get(request_id), self.table.get(request_id)
        if record is None or route is None or route.state is not RouteState.REPLIED or record.answer:
            return
        if self.table.confirm(request_id, self.now) is not None:
            return
        assert self.table.cancel(request_id, self.now).worker == record.worker
        record.cancel_sent = True
        if confirm_first:
            confirmed, cancelled = self.worker_confirms(record), self.ask_worker(record)
        else:
            cancelled, confirmed = self.ask_worker(record), self.worker_confirms(record)
        if confirm_first is not answers_cross:
            self.table.confirmed(request_id, confirmed, self.now)
            assert self.table.answered(request_id, cancelled, self.now) is cancelled
        else:
            assert self.table.answered(request_id, cancelled, self.now) is cancelled
            self.table.confirmed(request_id, confirmed, self.now)
        record.answer = cancelled
        assert self.table.cancel(request_id, self.now).outcome is cancelled
        self.told(record, confirmed)

    @invariant()
    def sessions_are_bounded(self) -> None:
        assert len(self.sessions) + len(self.sessions._over) <= 2
        assert len(self.sessions._over) <= 1
        owned = {name for name, client in self.clients.items() if client.owner is not None}
        assert self.sessions.open_sessions == owned

    def teardown(self) -> None:
        for worker in WORKERS:
            self.worker_comes_back(worker)
        for name, record in self.records.items():
            self.own_cancel(name, "answered")
            if record.owed and self.known(name) is not None:
                self.nothing_is_left(record)
        self.now += GRACE + 2 * WINDOW
        self.sessions.lost(self.now)
        assert len(self.sessions) == len(self.sessions.open_sessions)
        super().teardown()


BrokerSessionsMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestBrokerSessions = BrokerSessionsMachine.TestCase

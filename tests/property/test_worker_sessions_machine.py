"""A worker's sessions and its runs together, under all events in every order.

The machine plays clients whose streams open, break, come late and say goodbye in whatever order, old epochs
included, and the runs that name their sessions. What a session may do to a run follows from a record of what
really happened, kept apart from the tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from env_worker.domain.ledger import CancelOutcome, Entry, Event, State
from env_worker.domain.runs import ConfirmOutcome, DuplicateRequestError, RunTable, TableFullError
from env_worker.domain.sessions import SessionSupersededError, SessionTable

WINDOW, GRACE, LIMIT = 60.0, 3.0, 2
SESSIONS = [letter * 32 for letter in "abc"]
RUNS = [f"{number:032x}" for number in range(5)]
EPOCHS = st.integers(1, 5)


@dataclass
class Session:
    """What really happened to one session."""

    epoch: int = 0
    """The highest that was ever opened."""
    streams: set[int] = field(default_factory=set)
    """Epochs whose streams are open, old ones included."""
    live: bool = False
    """Opened, and neither lost nor over by a goodbye."""
    lost: bool = False
    """Over, and that because it did not come back."""
    away_since: float | None = None
    over_since: float = 0.0


@dataclass
class Run:
    entry: Entry
    kept: bool = False
    replied: bool = False
    discards: int = 0
    confirmed: bool = False
    protected: bool = False
    """When it was admitted, its session was here, or has been here again since."""
    saw_loss: bool = False
    """Its session was lost while it was open: the one thing a session may do to it."""


class SessionsMachine(RuleBasedStateMachine):
    runs: Bundle[Run] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = RunTable(late_cancel_seconds=WINDOW)
        self.sessions = SessionTable(grace_seconds=GRACE, limit=LIMIT, remember_seconds=2 * WINDOW)
        self.truth = {name: Session() for name in SESSIONS}
        self.all_runs: list[Run] = []
        self.forgot_one = False

    # Sessions.

    @rule(name=st.sampled_from(SESSIONS), epoch=EPOCHS)
    def a_stream_opens(self, name: str, epoch: int) -> None:
        truth = self.truth[name]
        remembered = truth.live or self.now < truth.over_since + 2 * WINDOW
        lives = sum(session.live for session in self.truth.values())
        try:
            self.sessions.open(name, epoch, self.now)
        except SessionSupersededError:
            assert epoch <= truth.epoch, "broke: the highest epoch owns the session"
            return
        except TableFullError:
            assert not truth.live, "a session that is here has its room"
            assert lives >= LIMIT
            return
        # A full memory may have forgotten one that is over; never one that is here.
        assert epoch > truth.epoch or not (truth.live or (remembered and not self.forgot_one)), (
            "broke: the highest epoch owns the session"
        )
        truth.epoch, truth.live, truth.lost, truth.away_since = epoch, True, False, None
        truth.streams.add(epoch)

    @precondition(lambda self: any(session.streams for session in self.truth.values()))
    @rule(data=st.data(), goodbye=st.booleans())
    def a_stream_ends(self, data: st.DataObject, goodbye: bool) -> None:
        """Any of them: that of the owner, or an old one that was superseded long ago."""
        name, epoch = data.draw(
            st.sampled_from(
                [(name, epoch) for name in SESSIONS for epoch in sorted(self.truth[name].streams)]
            )
        )
        truth = self.truth[name]
        truth.streams.discard(epoch)
        owns = truth.live and epoch == truth.epoch and truth.away_since is None
        end = self.sessions.goodbye if goodbye else self.sessions.stream_ended
        assert end(name, epoch, self.now) is owns, "broke: the end of an older epoch means nothing"
        if owns and goodbye:
            truth.live, truth.over_since = False, self.now
        elif owns:
            truth.away_since = self.now

    @rule(name=st.sampled_from(SESSIONS), epoch=EPOCHS, goodbye=st.booleans())
    def an_end_of_what_is_not_open(self, name: str, epoch: int, goodbye: bool) -> None:
        if epoch not in self.truth[name].streams and epoch != self.truth[name].epoch:
            end = self.sessions.goodbye if goodbye else self.sessions.stream_ended
            assert not end(name, epoch, self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, GRACE, WINDOW, 2 * WINDOW]), expire=st.booleans())
    def time_passes(self, seconds: float, expire: bool) -> None:
        self.now += seconds
        if expire:
            self.lose_sessions()
            for entry in self.table.expire(self.now):
                assert entry.state is State.EXPIRED

    def lose_sessions(self) -> None:
        due = {
            name
            for name, truth in self.truth.items()
            if truth.live and truth.away_since is not None and truth.away_since + GRACE <= self.now
        }
        lost = self.sessions.expire(self.now)
        assert len(lost) == len(set(lost))
        assert set(lost) == due, "broke: lost is what did not come back within its grace, and nothing else"
        for name in lost:
            self.truth[name].live, self.truth[name].away_since = False, None
            self.truth[name].over_since, self.truth[name].lost = self.now, True
            open_before = [run for run in self.of(name) if not run.entry.settled]
            for run in open_before:
                run.saw_loss = True
            moved = self.table.settle_all(Event.SESSION_LOST, self.now, session_id=name)
            assert [id(entry) for entry in moved] == [id(run.entry) for run in open_before]
            for run in open_before:
                self.discard_if_due(run)

    def of(self, session_id: str) -> list[Run]:
        return [run for run in self.all_runs if run.entry.session_id == session_id]

    # Runs.

    @rule(target=runs, request_id=st.sampled_from(RUNS), name=st.sampled_from(["", *SESSIONS]))
    def admit(self, request_id: str, name: str) -> Run:
        """Runs wait for no session: theirs may open later, or never. One that was lost waits again."""
        try:
            run = Run(self.table.admit(request_id, name, self.now))
        except DuplicateRequestError:
            return next(run for run in reversed(self.all_runs) if run.entry.request_id == request_id)
        self.all_runs.append(run)
        self.discard_if_due(run)
        if (truth := self.truth.get(name)) is not None:
            self.a_run_names(name, truth)
            run.protected = truth.live
        else:
            assert not self.sessions.named(name, self.now)
        return run

    def a_run_names(self, name: str, truth: Session) -> None:
        remembered = truth.lost and self.now < truth.over_since + 2 * WINDOW
        named = self.sessions.named(name, self.now)
        assert remembered or not named, "broke: what is here, said goodbye or is unknown is not taken up"
        assert named or not remembered or self.forgot_one, "broke: a run of a lost session is protected"
        if named:
            truth.live, truth.lost, truth.away_since = True, False, self.now

    @rule(run=runs, steps=st.integers(1, 4))
    def run_goes_on(self, run: Run, steps: int) -> None:
        for _ in range(steps):
            following = {
                State.QUEUED: Event.STARTED,
                State.RUNNING: Event.FINISHED,
                State.KEEPING: Event.KEEP_RETURNED,
                State.KEEPING_ABANDONED: Event.KEEP_RETURNED,
                State.KEPT: Event.REPLIED,
            }.get(run.entry.state)
            if following is None:
                return
            moved = self.table.settle(run.entry, following, self.now)
            run.kept |= following is Event.FINISHED
            run.replied |= following is Event.REPLIED and moved
            self.discard_if_due(run)

    @rule(run=runs, event=st.sampled_from([Event.CANCEL, Event.DEADLINE, Event.CALLER_LOST, Event.STOP]))
    def something_ends_it(self, run: Run, event: Event) -> None:
        if self.table.get(run.entry.request_id) is run.entry:
            self.table.settle(run.entry, event, self.now)
            self.discard_if_due(run)

    @rule(run=runs)
    def confirm(self, run: Run) -> None:
        entry = run.entry
        open_before, replied_before, windows = not entry.settled, entry.replied, self.table.open_windows
        outcome = self.table.confirm(entry.request_id, self.now)
        if open_before:
            wanted = ConfirmOutcome.CONFIRMED if replied_before else ConfirmOutcome.UNKNOWN
            assert outcome is wanted
            if replied_before:
                assert self.table.open_windows == windows - 1, "a confirmed run leaves its window at once"
        if self.is_the_latest(run) and outcome is not ConfirmOutcome.UNKNOWN:
            assert (outcome is ConfirmOutcome.CONFIRMED) is entry.delivered, "broke: answered truthfully"
            run.confirmed |= outcome is ConfirmOutcome.CONFIRMED

    def is_the_latest(self, run: Run) -> bool:
        same = [other for other in self.all_runs if other.entry.request_id == run.entry.request_id]
        return same[-1] is run

    def discard_if_due(self, run: Run) -> None:
        if run.entry.discard_due:
            assert self.table.settle(run.entry, Event.DISCARD_BEGAN, self.now)
            run.discards += 1
            assert self.table.settle(run.entry, Event.DISCARD_RETURNED, self.now)

    @invariant()
    def a_session_ends_only_its_own_runs_and_only_when_lost(self) -> None:
        for run in self.all_runs:
            if run.entry.cause is Event.SESSION_LOST:
                assert run.saw_loss, (
                    "broke: after a goodbye, and of sessions never opened, runs are left alone"
                )
                assert run.entry.session_id

    @invariant()
    def what_names_a_lost_session_is_ended(self) -> None:
        for run in self.all_runs:
            if run.protected and self.truth[run.entry.session_id].lost:
                assert run.entry.settled, "broke: a dead client leaks nothing"

    @invariant()
    def what_a_full_memory_forgets_does_not_come_back(self) -> None:
        over = sum(not session.live and session.epoch > 0 for session in self.truth.values())
        self.forgot_one = self.forgot_one or over > LIMIT

    @invariant()
    def confirmed_is_final(self) -> None:
        for run in self.all_runs:
            assert run.discards <= int(run.kept)
            if run.confirmed:
                assert run.entry.delivered, "broke ConfirmedIsFinal"
                assert run.discards == 0, "broke ConfirmedIsFinal"
                assert run.entry.outcome is CancelOutcome.TOO_LATE
            if run.entry.closed and run.kept:
                assert run.entry.delivered is (run.discards == 0), "broke DeliveredXorDiscarded"
                assert run.replied or not run.entry.delivered

    @invariant()
    def the_tables_are_what_happened(self) -> None:
        for name, truth in self.truth.items():
            assert self.sessions.owner(name) == (truth.epoch if truth.live else None)
        assert len(self.sessions) == sum(truth.live for truth in self.truth.values())
        assert len(self.sessions) + len(self.sessions._over) <= 2 * LIMIT
        away = [
            truth.away_since for truth in self.truth.values() if truth.live and truth.away_since is not None
        ]
        assert self.sessions.next_expiry == (min(away) + GRACE if away else None)
        assert len(self.sessions._over) <= LIMIT

    def teardown(self) -> None:
        """Every client dies, and nothing is left: no open window of a session that was seen, no session."""
        for name, truth in self.truth.items():
            if truth.live and truth.away_since is None:
                assert self.sessions.stream_ended(name, truth.epoch, self.now)
                truth.away_since = self.now
        seen = [name for name, truth in self.truth.items() if truth.live]
        self.now += GRACE
        self.lose_sessions()
        for name in seen:
            assert all(run.entry.settled for run in self.of(name)), "broke: a dead client leaks nothing"
        self.sessions.expire(self.now + 2 * WINDOW)
        assert len(self.sessions) == len(self.sessions._over) == 0


SessionsMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
TestWorkerSessions = SessionsMachine.TestCase

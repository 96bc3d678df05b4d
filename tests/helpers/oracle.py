"""The promises of the contract, one function for each, judged over what happened.

A function returns if its promise held and raises `GuaranteeBroken` with the promise as text if it did not.
Histories must be at rest: every caller has its status, every keep and discard has come to its end. A worker
that was killed (`WorkerDied`) excuses the ends and the discards of what it itself had kept, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.helpers.guarantee import GuaranteeBroken, broke
from tests.helpers.history import (
    Asked,
    BrokerDied,
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    ConfirmSent,
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    Ended,
    EnvironmentBegan,
    History,
    KeepBegan,
    KeepRaised,
    KeepReturned,
    Passed,
    Returned,
    SessionLost,
    Uncertain,
)
from tests.helpers.oracle_streams import (
    each_thing_once,
    no_training_array_on_the_wire,
    ordered_without_gaps,
    relayed_verbatim,
    reply_once_and_last,
    statuses,
)
from tests.helpers.stream_view import difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from tests.helpers.history import Record
    from tests.helpers.snapshot import Snapshot

__all__ = [
    "GuaranteeBroken",
    "assembly_equals_source",
    "cancel_answered_truthfully",
    "confirmed_is_final",
    "contract_holds",
    "delivered_xor_discarded",
    "each_thing_once",
    "never_discarded_while_keeping",
    "no_training_array_on_the_wire",
    "nothing_left_behind",
    "one_outcome_each",
    "ordered_without_gaps",
    "outcomes_add_up",
    "promises_hold",
    "relayed_verbatim",
    "reply_once_and_last",
    "run_once",
    "settled_once",
]

_DEFINITE: Final = frozenset({"ABORTED", "DISCARDED", "TOO_LATE", "CONFIRMED"})
_CANCEL_OUTCOMES: Final = frozenset({"ABORTED", "DISCARDED", "TOO_LATE", "REMEMBERED"})


def promises_hold(history: History, *, asked: int | None = None, hooked: bool = True) -> None:
    """Every promise that a history of runs can be judged by.

    `asked` is how many runs the test asked for, counted apart from the history; `hooked` is False where no
    hook was set.
    """
    ordered_without_gaps(history)
    reply_once_and_last(history)
    each_thing_once(history)
    no_training_array_on_the_wire(history)
    if any(isinstance(record, Passed) and record.hop == "worker" for record in history):
        relayed_verbatim(history)
    contract_holds(history, asked=asked, hooked=hooked)


def contract_holds(history: History, *, asked: int | None = None, hooked: bool = True) -> None:
    """Every promise about keep, discard, cancel and confirm, for histories that recorded no messages."""
    settled_once(history)
    never_discarded_while_keeping(history)
    delivered_xor_discarded(history, hooked=hooked)
    cancel_answered_truthfully(history)
    confirmed_is_final(history)
    one_outcome_each(history)
    run_once(history)
    if asked is not None:
        outcomes_add_up(history, asked)


def settled_once(history: History) -> None:
    """A run has at most one status, one keep and one discard, and each of the two comes to one end."""
    for run in history.runs():
        _at_most_one(run, "ended", statuses(history, run))
        for what, began, ended in (
            ("keep", history.of(run, KeepBegan), history.of(run, KeepReturned, KeepRaised)),
            ("discard", history.of(run, DiscardBegan), history.of(run, DiscardReturned, DiscardRaised)),
        ):
            _at_most_one(run, f"{what} was called", began)
            if len(ended) != len(began) and not history.kept_died(run):
                broke("SettledOnce", run, f"{what} was called {len(began)} times and has {len(ended)} ends")


def never_discarded_while_keeping(history: History) -> None:
    """`discard` begins only after `keep` of the same episode came to its end."""
    for run in history.runs():
        keeping = False
        for record in history.of(run, KeepBegan, KeepReturned, KeepRaised, DiscardBegan):
            if isinstance(record, DiscardBegan) and keeping:
                broke("NeverDiscardedWhileKeeping", run, "discard was called while keep was running")
            keeping = isinstance(record, KeepBegan)


def delivered_xor_discarded(history: History, *, hooked: bool = True) -> None:
    """Every kept episode was delivered or handed to `discard`, not both. Nothing else is discarded.

    Status OK delivers, but where the session was lost: there, only what was settled before is delivered. Of
    an `Uncertain` episode, and of one whose caller has taken it back with no worker there to say whether it
    was still in time, nobody knows which of the two.
    """
    name = "DeliveredXorDiscarded"
    for run in history.runs():
        kept, discards = history.of(run, KeepBegan), history.of(run, DiscardBegan)
        outcomes = {record.outcome for record in history.of(run, CancelAnswered)}
        outcomes |= {record.outcome for record in history.of(run, ConfirmAnswered)}
        ended_ok = any(record.code == "OK" for record in statuses(history, run))
        if discards and not kept:
            broke(name, run, "discard got an episode that keep never saw")
        if discards and discards[0].episode_id != kept[0].episode_id:
            broke(name, run, f"keep saw episode {kept[0].episode_id!r}, discard {discards[0].episode_id!r}")
        if ended_ok and hooked and not kept:
            broke(name, run, "the episode was delivered, but keep never saw it")
        settled = outcomes & {"TOO_LATE", "CONFIRMED"} or history.of(run, Returned)
        lost = history.of(run, SessionLost)
        asked_back = outcomes - {"KILLED"}
        unknown = history.of(run, Uncertain) or (ended_ok and asked_back and not outcomes & _DEFINITE)
        if unknown and not settled and "DISCARDED" not in outcomes:
            continue
        delivered = (settled or (ended_ok and not lost)) and "DISCARDED" not in outcomes
        if kept and delivered and discards:
            broke(name, run, "the episode was delivered and discarded too")
        if kept and not delivered and not discards and not history.kept_died(run):
            broke(name, run, "the episode was kept, not delivered, and never discarded")


def cancel_answered_truthfully(history: History) -> None:
    """Every Cancel was answered, all of one run alike, and what the answer says is what became of the run."""
    name = "CancelAnsweredTruthfully"
    restarted = history.of("", BrokerDied)
    for run in history.runs():
        answers = history.of(run, CancelAnswered)
        if len(answers) != len(history.of(run, CancelSent)):
            broke(name, run, f"{len(history.of(run, CancelSent))} cancels had {len(answers)} answers")
        outcomes = [answer.outcome for answer in answers if answer.outcome in _CANCEL_OUTCOMES]
        changes = list(dict.fromkeys(outcomes))
        # Another broker knows nothing of a run until its worker is there.
        known = [outcome for outcome in changes if outcome != "REMEMBERED"] if restarted else changes
        if len(known) > 1 and changes != ["REMEMBERED", "ABORTED"]:
            broke(name, run, f"repeated cancels were answered {', then '.join(changes)}")
        ended_ok = any(record.code == "OK" for record in statuses(history, run))
        discards = history.of(run, DiscardBegan)
        if "ABORTED" in outcomes and ended_ok:
            broke(name, run, "a cancel was answered ABORTED, but the run ended OK")
        if "DISCARDED" in outcomes and _might_discard(history, run) and not discards:
            broke(name, run, "a cancel was answered DISCARDED, but discard was not called")
        if "TOO_LATE" in outcomes and discards:
            broke(name, run, "a cancel was answered TOO_LATE, but the episode was discarded")
        remembered = [answer.seq for answer in answers if answer.outcome == "REMEMBERED"]
        asked = history.of(run, Asked)
        if remembered and asked and asked[0].seq > remembered[0] and ended_ok:
            broke(name, run, "a cancel was REMEMBERED, but the run that came later ended OK")


def confirmed_is_final(history: History) -> None:
    """A confirmed run is never taken back, and what a confirmation was answered DISCARDED never returned."""
    name = "ConfirmedIsFinal"
    for run in history.runs():
        answers = history.of(run, ConfirmAnswered)
        if len(answers) > len(sent := history.of(run, ConfirmSent)):
            broke(name, run, f"{len(sent)} confirmations had {len(answers)} answers")
        confirms = {answer.outcome for answer in answers}
        cancels = {answer.outcome for answer in history.of(run, CancelAnswered)}
        returned = bool(history.of(run, Returned))
        discards = history.of(run, DiscardBegan)
        if "CONFIRMED" in confirms or returned:
            how = "confirmed" if "CONFIRMED" in confirms else "returned"
            if discards:
                broke(name, run, f"the episode was {how}, and discarded all the same")
            if lies := cancels & {"ABORTED", "DISCARDED"}:
                broke(name, run, f"the episode was {how}, but a cancel was answered {lies.pop()}")
        if "DISCARDED" in confirms:
            if returned or "CONFIRMED" in confirms:
                how = "returned" if returned else "CONFIRMED too"
                broke(name, run, f"a confirmation was answered DISCARDED, but the episode was {how}")
            if _might_discard(history, run) and not discards:
                broke(name, run, "a confirmation was answered DISCARDED, but discard was not called")
            if "TOO_LATE" in cancels:
                broke(name, run, "a confirmation was answered DISCARDED, but a cancel TOO_LATE")


def outcomes_add_up(history: History, asked: int) -> None:
    """So many runs were asked for, and each of them has exactly one outcome."""
    requests = sum(isinstance(record, Asked) for record in history)
    if requests != asked:
        broke("OutcomesAddUp", "", f"{asked} runs should have been asked for, {requests} were")
    one_outcome_each(history)


def one_outcome_each(history: History) -> None:
    """Each request has exactly one outcome."""
    for run in history.runs():
        requests, outcomes = len(history.of(run, Asked)), len(history.of(run, Ended))
        if requests != outcomes:
            broke("OutcomesAddUp", run, f"asked {requests} times, it has {outcomes} outcomes")


def run_once(history: History) -> None:
    """Nobody but the caller ever sends a run again: an environment is called at most once for each."""
    for run in history.runs():
        if len(began := history.of(run, EnvironmentBegan)) > 1:
            pids = ", ".join(str(record.pid) for record in began)
            broke("RunOnce", run, f"its environment was called {len(began)} times, in the processes {pids}")


def assembly_equals_source(assembled: Message, source: Message) -> None:
    """What the receiver put together is what the environment made."""
    if (where := difference(assembled, source)) is not None:
        broke("AssemblyEqualsSource", "", where)


def nothing_left_behind(before: Snapshot, after: Snapshot) -> None:
    """No process, task, thread or open file is there that was not there before."""
    for what in ("processes", "tasks", "threads"):
        if left := getattr(after, what) - getattr(before, what):
            broke("NothingLeftBehind", "", f"{what} are left: {', '.join(sorted(left))}")
    if left := after.files - before.files:
        broke("NothingLeftBehind", "", f"files are left open: {dict(left)}")


def _might_discard(history: History, run: str) -> bool:
    """Whether there is something to discard, and a worker that can."""
    return bool(history.of(run, KeepBegan)) and not history.kept_died(run)


def _at_most_one(run: str, what: str, records: Sequence[Record]) -> None:
    if len(records) > 1:
        broke("SettledOnce", run, f"{what} {len(records)} times")

"""What the death of a worker, a broker or a client excuses, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers import oracle
from tests.helpers.burial import bury
from tests.helpers.history import (
    BrokerDied,
    CancelAnswered,
    CancelSent,
    ConfirmSent,
    EnvironmentBegan,
    History,
    KeepBegan,
    KeepReturned,
    Uncertain,
    WorkerDied,
)
from tests.helpers.history_pipe import owes_discard
from tests.helpers.oracle import GuaranteeBroken
from tests.unit.kit.builder import RUN, run_history

PID, OTHER_PID = 7, 8


def on_worker(pid: int = PID, **fields: Any) -> History:
    """A run whose keep ran in that process."""
    history = run_history(**fields)
    return History([replace(r, pid=pid) if isinstance(r, KeepBegan) else r for r in history])


def died(history: History, pid: int = PID) -> History:
    """That worker was killed afterwards."""
    history.note(WorkerDied, "", pid=pid)
    return history


def without_return(history: History) -> History:
    """Its keep did not come to its end."""
    return History([record for record in history if not isinstance(record, KeepReturned)])


@pytest.mark.parametrize(
    "history",
    [
        died(on_worker(code="UNAVAILABLE")),  # kept, not delivered, never discarded
        died(without_return(on_worker(code="UNAVAILABLE"))),
        died(on_worker(code="CANCELLED", cancels=("ABORTED",))),
        died(on_worker(cancels=("DISCARDED",))),
        died(on_worker(confirms=("DISCARDED",), code="CANCELLED")),
        died(on_worker(confirms=("WORKER_LOST",), cancels=("TOO_LATE WORKER_LOST",))),
        died(on_worker(code="UNAVAILABLE", cancels=("ABORTED WORKER_LOST",))),
    ],
)
def test_a_killed_worker_takes_what_it_kept_with_it(history: History) -> None:
    oracle.contract_holds(history)
    assert not owes_discard(history, RUN)


@pytest.mark.parametrize(
    ("history", "what"),
    [
        (died(on_worker(code="UNAVAILABLE"), OTHER_PID), "never discarded"),
        (died(without_return(on_worker(code="UNAVAILABLE")), OTHER_PID), "0 ends"),
        (died(on_worker(confirms=("CONFIRMED",), discarded=True)), "delivered and discarded"),
        (died(on_worker(returned=True, discarded=True)), "delivered and discarded"),
        (died(on_worker(cancels=("ABORTED",))), "ended OK"),
    ],
)
def test_a_killed_worker_excuses_nothing_else(history: History, what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=what):
        oracle.contract_holds(history)


def test_only_what_was_kept_before_the_death_has_died() -> None:
    history = History([WorkerDied(1, "", PID)])
    for record in on_worker(code="UNAVAILABLE"):
        history.add(record)
    with pytest.raises(GuaranteeBroken, match="never discarded"):
        oracle.contract_holds(history)


@pytest.mark.parametrize("discarded", [False, True])
def test_of_an_uncertain_episode_nobody_knows(discarded: bool) -> None:
    history = run_history(code="UNAVAILABLE", discarded=discarded)
    history.note(Uncertain, RUN)
    oracle.contract_holds(history)
    assert not owes_discard(history, RUN)
    confirmed = run_history(confirms=("CONFIRMED",), discarded=True)
    confirmed.note(Uncertain, RUN)
    with pytest.raises(GuaranteeBroken, match="delivered and discarded"):
        oracle.delivered_xor_discarded(confirmed)


@pytest.mark.parametrize("discarded", [False, True])
def test_a_reply_whose_cancel_found_no_worker_may_be_either(discarded: bool) -> None:
    oracle.contract_holds(run_history(cancels=("TOO_LATE WORKER_LOST",), discarded=discarded))
    oracle.contract_holds(
        run_history(cancels=("TOO_LATE WORKER_LOST", "DISCARDED"), discarded=True)  # it came back
    )
    later = run_history(cancels=("TOO_LATE WORKER_LOST", "REMEMBERED"), discarded=discarded)
    later.note(BrokerDied, "")
    oracle.contract_holds(later)  # it came back, and was gone again when another broker was asked
    with pytest.raises(GuaranteeBroken, match="delivered and discarded"):
        oracle.contract_holds(run_history(cancels=("KILLED",), discarded=True))


def test_another_broker_may_remember_what_the_first_has_answered() -> None:
    cancels = ("ABORTED", "REMEMBERED")
    history = run_history(code="UNAVAILABLE", kept=False, cancels=cancels)
    with pytest.raises(GuaranteeBroken, match="ABORTED, then REMEMBERED"):
        oracle.cancel_answered_truthfully(history)
    history.note(BrokerDied, "")
    oracle.cancel_answered_truthfully(history)
    lie = run_history(cancels=("REMEMBERED", "TOO_LATE", "DISCARDED"), discarded=True)
    lie.note(BrokerDied, "")
    with pytest.raises(GuaranteeBroken, match="TOO_LATE, then DISCARDED"):
        oracle.cancel_answered_truthfully(lie)


def test_a_run_is_run_once() -> None:
    history = run_history()
    history.note(EnvironmentBegan, RUN, pid=PID)
    oracle.contract_holds(history)
    history.note(EnvironmentBegan, RUN, pid=OTHER_PID)
    with pytest.raises(GuaranteeBroken, match=r"broke RunOnce: .* 2 times, in the processes 7, 8"):
        oracle.contract_holds(history)


def test_a_killed_client_is_buried() -> None:
    leaked = run_history()
    bury(leaked, RUN)
    with pytest.raises(GuaranteeBroken, match="never discarded"):
        oracle.contract_holds(leaked)  # its session was lost
    alone = run_history()
    bury(alone, RUN, session=False)
    oracle.contract_holds(alone)  # the window alone decided
    pending = run_history()
    pending.note(ConfirmSent, RUN)
    pending.note(CancelSent, RUN)
    bury(pending, RUN)
    assert [answer.outcome for answer in pending.of(RUN, CancelAnswered)] == ["KILLED"]
    oracle.contract_holds(pending)
    orphaned = run_history()
    orphaned.note(BrokerDied, "")
    bury(orphaned, RUN)
    oracle.contract_holds(orphaned)  # the next broker never saw its session


def test_records_of_all_runs_stay_with_each_part() -> None:
    history = died(run_history())
    assert history.runs() == [RUN]
    assert [record.run for record in history.only([RUN]).of("", WorkerDied)] == [""]

"""The oracle's other promises: each passes on a good history and fails on every kind of bad one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from envtrio.v1 import episode_pb2

from tests.helpers import oracle
from tests.helpers.history import (
    Asked,
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    Ended,
    History,
    KeepBegan,
    KeepRaised,
    KeepReturned,
    SessionLost,
)
from tests.helpers.oracle import GuaranteeBroken
from tests.helpers.snapshot import Snapshot
from tests.unit.kit.builder import OTHER, RUN, run_history, together


def hooks(*kinds: type) -> History:
    """A cancelled run whose hook saw these events in this order."""
    history = History()
    for kind in kinds:
        fields = {"episode_id": "e"} if kind in (KeepBegan, DiscardBegan) else {}
        history.note(kind, RUN, **fields)
    return history


def test_settled_once_holds() -> None:
    oracle.settled_once(run_history())
    oracle.settled_once(hooks(KeepBegan, KeepRaised, DiscardBegan, DiscardRaised))
    twice = run_history()
    twice.note(Ended, RUN, code="ALREADY_EXISTS", reason="DUPLICATE_REQUEST_ID")
    oracle.settled_once(twice)


@pytest.mark.parametrize(
    ("history", "what"),
    [
        (hooks(KeepBegan, KeepReturned, KeepBegan, KeepReturned), "keep was called 2 times"),
        (hooks(DiscardBegan, DiscardReturned, DiscardBegan, DiscardReturned), "discard was called 2 times"),
        (hooks(KeepBegan), "0 ends"),
        (hooks(KeepBegan, KeepReturned, KeepRaised), "2 ends"),
        (hooks(DiscardBegan), "0 ends"),
        (together(run_history(), run_history(code="CANCELLED")), "ended 2 times"),
    ],
)
def test_settled_once_broken(history: History, what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke SettledOnce: .*{what}"):
        oracle.settled_once(history)


def test_never_discarded_while_keeping() -> None:
    oracle.never_discarded_while_keeping(hooks(KeepBegan, KeepReturned, DiscardBegan))
    oracle.never_discarded_while_keeping(hooks(KeepBegan, KeepRaised, DiscardBegan))
    with pytest.raises(GuaranteeBroken, match="broke NeverDiscardedWhileKeeping"):
        oracle.never_discarded_while_keeping(hooks(KeepBegan, DiscardBegan, KeepReturned))


@pytest.mark.parametrize(
    "history",
    [
        run_history(),
        run_history(code="CANCELLED", discarded=True, cancels=("ABORTED",)),
        run_history(code="CANCELLED", kept=False),
        run_history(discarded=True, cancels=("DISCARDED",)),
        run_history(cancels=("TOO_LATE",)),
        run_history(code="CANCELLED", cancels=("TOO_LATE",)),  # the caller hung up behind the settlement
        run_history(confirms=("CONFIRMED",)),
        run_history(code="KILLED", confirms=("CONFIRMED",)),
        run_history(confirms=("DISCARDED",), discarded=True),
    ],
)
def test_delivered_xor_discarded_holds(history: History) -> None:
    oracle.delivered_xor_discarded(history)


@pytest.mark.parametrize(
    ("history", "what"),
    [
        (run_history(discarded=True), "delivered and discarded"),
        (run_history(code="CANCELLED"), "never discarded"),
        (run_history(cancels=("DISCARDED",)), "never discarded"),
        (run_history(code="KILLED"), "never discarded"),
        (run_history(code="KILLED", confirms=("UNKNOWN",)), "never discarded"),
        (run_history(code="CANCELLED", kept=False, discarded=True), "keep never saw"),
        (run_history(kept=False), "delivered, but keep never saw"),
        (
            together(
                hooks(KeepBegan, KeepReturned),
                History(
                    [replace(r, episode_id="x") for r in hooks(DiscardBegan) if isinstance(r, DiscardBegan)]
                ),
            ),
            "episode 'e', discard 'x'",
        ),
    ],
)
def test_delivered_xor_discarded_broken(history: History, what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke DeliveredXorDiscarded: .*{what}"):
        oracle.delivered_xor_discarded(history)


def test_a_reply_to_a_lost_session_is_no_delivery() -> None:
    def lost(**fields: Any) -> History:
        history = run_history(**fields)
        history.note(SessionLost, RUN)
        return history

    oracle.delivered_xor_discarded(lost(discarded=True))
    oracle.delivered_xor_discarded(lost(confirms=("CONFIRMED",)))
    oracle.delivered_xor_discarded(lost(cancels=("TOO_LATE",)))
    oracle.delivered_xor_discarded(lost(code="CANCELLED", kept=False))
    with pytest.raises(GuaranteeBroken, match="never discarded"):
        oracle.delivered_xor_discarded(lost())
    with pytest.raises(GuaranteeBroken, match="delivered and discarded"):
        oracle.delivered_xor_discarded(lost(confirms=("CONFIRMED",), discarded=True))


def test_without_a_hook_nothing_is_kept() -> None:
    oracle.delivered_xor_discarded(run_history(kept=False), hooked=False)


@pytest.mark.parametrize(
    "history",
    [
        run_history(),
        run_history(code="CANCELLED", discarded=True, cancels=("ABORTED", "ABORTED")),
        run_history(discarded=True, cancels=("DISCARDED", "DISCARDED")),
        run_history(cancels=("TOO_LATE",)),
        run_history(cancels=("UNAVAILABLE", "TOO_LATE")),
        run_history(code="CANCELLED", kept=False, cancels=("REMEMBERED", "ABORTED")),
    ],
)
def test_cancel_answered_truthfully_holds(history: History) -> None:
    oracle.cancel_answered_truthfully(history)


@pytest.mark.parametrize(
    ("history", "what"),
    [
        (run_history(cancels=("ABORTED",)), "ended OK"),
        (run_history(cancels=("DISCARDED",)), "discard was not called"),
        (run_history(cancels=("TOO_LATE",), discarded=True), "was discarded"),
        (run_history(cancels=("TOO_LATE", "DISCARDED"), discarded=True), "TOO_LATE, then DISCARDED"),
        (run_history(code="CANCELLED", discarded=True, cancels=("ABORTED", "REMEMBERED")), "ABORTED, then"),
        (run_history(cancels=("REMEMBERED", "DISCARDED"), discarded=True), "REMEMBERED, then"),
    ],
)
def test_cancel_answered_truthfully_broken(history: History, what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke CancelAnsweredTruthfully: .*{what}"):
        oracle.cancel_answered_truthfully(history)


def test_a_cancel_without_an_answer() -> None:
    history = run_history()
    history.note(CancelSent, RUN)
    with pytest.raises(GuaranteeBroken, match="1 cancels had 0 answers"):
        oracle.cancel_answered_truthfully(history)


def test_a_remembered_cancel_has_to_apply() -> None:
    early = History([r for r in run_history(cancels=("REMEMBERED",)) if isinstance(r, CancelAnswered)])
    early.note(CancelSent, RUN)
    oracle.cancel_answered_truthfully(together(early, run_history(code="CANCELLED", kept=False)))
    with pytest.raises(GuaranteeBroken, match="REMEMBERED, but"):
        oracle.cancel_answered_truthfully(together(early, run_history()))


@pytest.mark.parametrize(
    "history",
    [
        run_history(),
        run_history(confirms=("CONFIRMED",), returned=True, cancels=("TOO_LATE",)),
        run_history(confirms=("UNKNOWN", "CONFIRMED", "CONFIRMED"), returned=True),
        run_history(confirms=("DISCARDED",), discarded=True, cancels=("DISCARDED",)),
        run_history(confirms=("DISCARDED",), kept=False),
        run_history(confirms=("WORKER_LOST",), cancels=("TOO_LATE",)),
        run_history(returned=True),
        run_history(discarded=True, cancels=("DISCARDED",)),
    ],
)
def test_confirmed_is_final_holds(history: History) -> None:
    oracle.confirmed_is_final(history)


@pytest.mark.parametrize(
    ("history", "what"),
    [
        (run_history(confirms=("CONFIRMED",), discarded=True), "confirmed, and discarded"),
        (run_history(returned=True, discarded=True), "returned, and discarded"),
        (
            run_history(confirms=("CONFIRMED",), cancels=("DISCARDED",)),
            "but a cancel was answered DISCARDED",
        ),
        (run_history(returned=True, cancels=("ABORTED",)), "returned, but a cancel was answered ABORTED"),
        (
            run_history(confirms=("DISCARDED",), returned=True, kept=False),
            "DISCARDED, but the episode was returned",
        ),
        (run_history(confirms=("DISCARDED", "CONFIRMED")), "DISCARDED, but the episode was CONFIRMED too"),
        (run_history(confirms=("DISCARDED",)), "DISCARDED, but discard was not called"),
        (
            run_history(confirms=("DISCARDED",), discarded=True, cancels=("TOO_LATE",)),
            "DISCARDED, but a cancel TOO_LATE",
        ),
        (History([ConfirmAnswered(1, RUN, "CONFIRMED")]), "0 confirmations had 1 answers"),
    ],
)
def test_confirmed_is_final_broken(history: History, what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke ConfirmedIsFinal: .*{what}"):
        oracle.confirmed_is_final(history)


def test_outcomes_add_up() -> None:
    both = together(run_history(), run_history(run=OTHER, code="CANCELLED"))
    oracle.outcomes_add_up(both, 2)
    with pytest.raises(GuaranteeBroken, match="3 runs should have been asked for, 2 were"):
        oracle.outcomes_add_up(both, 3)
    both.note(Asked, OTHER)
    with pytest.raises(GuaranteeBroken, match="run ffffffff: asked 2 times, it has 1 outcomes"):
        oracle.outcomes_add_up(both, 3)


def an_episode() -> episode_pb2.Episode:
    nodes = [episode_pb2.Node(token_ids=b"1234"), episode_pb2.Node(parent=0)]
    trace = episode_pb2.Trace(
        header=episode_pb2.TraceHeader(trace_id="t"), nodes=nodes, metrics={"turns": 1.0}, ok=True
    )
    return episode_pb2.Episode(head=episode_pb2.EpisodeHead(episode_id="e"), traces=[trace])


def test_assembly_equals_source_holds() -> None:
    oracle.assembly_equals_source(an_episode(), an_episode())


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("head.episode_id", lambda e: setattr(e.head, "episode_id", "other")),
        (r"traces has 2 entries", lambda e: e.traces.add()),
        (r"traces\[0\].nodes\[0\].token_ids", lambda e: setattr(e.traces[0].nodes[0], "token_ids", b"4321")),
        (r"traces\[0\].nodes\[1\].parent is absent", lambda e: e.traces[0].nodes[1].ClearField("parent")),
        (r"traces\[0\].ok is False", lambda e: setattr(e.traces[0], "ok", False)),
        (r"traces\[0\].metrics", lambda e: e.traces[0].metrics.clear()),
        (r"traces\[0\].nodes has 1 entries", lambda e: e.traces[0].nodes.pop()),
        (r"head is absent", lambda e: e.ClearField("head")),
        (r"unknown fields", lambda e: e.head.MergeFromString(b"\xa2\x06\x03abc")),
    ],
)
def test_assembly_equals_source_broken(where: str, change: object) -> None:
    assembled = an_episode()
    assert callable(change)
    change(assembled)
    with pytest.raises(GuaranteeBroken, match=f"broke AssemblyEqualsSource: .*{where}"):
        oracle.assembly_equals_source(assembled, an_episode())


EMPTY = Snapshot(frozenset(), frozenset(), frozenset(), Counter())


def test_nothing_left_behind_holds() -> None:
    before = replace(EMPTY, files=Counter({"socket": 2}), threads=frozenset({"1 main"}))
    oracle.nothing_left_behind(before, before)
    oracle.nothing_left_behind(before, replace(before, files=Counter({"socket": 1}), threads=frozenset()))


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (replace(EMPTY, processes=frozenset({"12 python"})), "processes are left: 12 python"),
        (replace(EMPTY, tasks=frozenset({"Task-1"})), "tasks are left: Task-1"),
        (replace(EMPTY, threads=frozenset({"1 keep"})), "threads are left: 1 keep"),
        (replace(EMPTY, files=Counter({"socket": 1})), "files are left open: {'socket': 1}"),
    ],
)
def test_nothing_left_behind_broken(after: Snapshot, what: str) -> None:
    with pytest.raises(GuaranteeBroken, match=f"broke NothingLeftBehind: {what}"):
        oracle.nothing_left_behind(EMPTY, after)

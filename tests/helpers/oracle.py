"""The promises of the contract, one function for each, judged over what happened.

A function returns if its promise held and raises `GuaranteeBroken` with the promise as text if it did not.
Histories must be at rest: every caller has its status, every keep and discard has come to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from envtrio.v1 import delta_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.helpers.history import (
    Asked,
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    ConfirmSent,
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    Ended,
    History,
    KeepBegan,
    KeepRaised,
    KeepReturned,
    Passed,
    Returned,
    SessionLost,
)
from tests.helpers.stream_view import counts, difference, merged, streams, submessages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from tests.helpers.history import Record
    from tests.helpers.snapshot import Snapshot

ARRAY_FIELDS: Final = frozenset({"routed_experts", "sampling_mask", "top_logprobs", "routing_repairs"})
_CANCEL_OUTCOMES: Final = frozenset({"ABORTED", "DISCARDED", "TOO_LATE", "REMEMBERED"})


class GuaranteeBroken(AssertionError):
    """A promise did not hold. The text is "broke <Promise>: run <8 digits>: what happened instead"."""


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
    if asked is not None:
        outcomes_add_up(history, asked)


def ordered_without_gaps(history: History, hop: str = "client") -> None:
    """Each trace opens with seq 0 and a header, then grows by one seq at a time; a discard starts it over."""
    name = "OrderedWithoutGaps"
    for run, messages in streams(history, hop):
        following: dict[str, int] = {}
        for delta in (delta for message in messages for delta in message.deltas):
            trace, seq = delta.trace_id, delta.seq
            is_open = trace in following and not delta.discard
            expected = following[trace] if is_open else 0
            if delta.discard and trace not in following:
                _broke(name, run, f"trace {trace!r} was discarded, but was not open")
            if seq != expected:
                _broke(name, run, f"trace {trace!r} went on with seq {seq} where {expected} was due")
            if delta.discard and not delta.HasField("append"):
                if delta.HasField("pending"):
                    _broke(name, run, f"trace {trace!r} was discarded and has a pending preview all the same")
                del following[trace]
                continue
            if delta.append.HasField("header") == is_open:
                _broke(name, run, f"trace {trace!r} has {'a second' if is_open else 'no'} header, seq {seq}")
            if not is_open and delta.append.header.trace_id != trace:
                _broke(name, run, f"trace {trace!r} has the header of {delta.append.header.trace_id!r}")
            following[trace] = seq + 1


def reply_once_and_last(history: History, hop: str = "client") -> None:
    """A stream that ended OK has one reply, in its last message; no stream has more, or goes on behind it."""
    name = "ReplyOnceAndLast"
    for run, messages in streams(history, hop):
        at = [number for number, message in enumerate(messages) if message.HasField("reply")]
        if len(at) > 1:
            _broke(name, run, f"{len(at)} messages had a reply")
        if at and at[0] != len(messages) - 1:
            _broke(name, run, f"{len(messages) - 1 - at[0]} messages came behind the reply")
    for run in history.runs():
        ended = _ended(history, run)
        passed = [record for record in history.of(run, Passed) if record.hop == hop]
        if any(record.code == "OK" for record in ended):
            last = delta_pb2.DeltaStream.FromString(passed[-1].data) if passed else delta_pb2.DeltaStream()
            if not last.HasField("reply"):
                _broke(name, run, "the status was OK, but no reply came")
        if ended and passed and passed[-1].seq > ended[0].seq:
            _broke(name, run, "a message came behind the status")


def each_thing_once(history: History, hop: str = "client") -> None:
    """What the reply counts is what crossed since each trace's last opening: nothing missing or doubled."""
    name = "EachThingOnce"
    for run, messages in streams(history, hop):
        if not messages or not messages[-1].HasField("reply"):
            continue
        traces, deltas = merged(messages)
        replied = [count.trace_id for count in messages[-1].reply.traces]
        if sorted(replied) != sorted(traces):
            _broke(name, run, f"traces {sorted(traces)} crossed, the reply counts {sorted(replied)}")
        for count in messages[-1].reply.traces:
            trace = count.trace_id
            for field, found in {**counts(traces[trace]), "deltas": deltas[trace]}.items():
                if found != (told := getattr(count, field)):
                    _broke(name, run, f"{found} {field} of trace {trace!r} crossed, the reply counts {told}")


def settled_once(history: History) -> None:
    """A run has at most one status, one keep and one discard, and each of the two comes to one end."""
    for run in history.runs():
        _at_most_one(run, "ended", _ended(history, run))
        for what, began, ended in (
            ("keep", history.of(run, KeepBegan), history.of(run, KeepReturned, KeepRaised)),
            ("discard", history.of(run, DiscardBegan), history.of(run, DiscardReturned, DiscardRaised)),
        ):
            _at_most_one(run, f"{what} was called", began)
            if len(ended) != len(began):
                _broke("SettledOnce", run, f"{what} was called {len(began)} times and has {len(ended)} ends")


def never_discarded_while_keeping(history: History) -> None:
    """`discard` begins only after `keep` of the same episode came to its end."""
    for run in history.runs():
        keeping = False
        for record in history.of(run, KeepBegan, KeepReturned, KeepRaised, DiscardBegan):
            if isinstance(record, DiscardBegan) and keeping:
                _broke("NeverDiscardedWhileKeeping", run, "discard was called while keep was running")
            keeping = isinstance(record, KeepBegan)


def delivered_xor_discarded(history: History, *, hooked: bool = True) -> None:
    """Every kept episode was delivered or handed to `discard`, not both. Nothing else is discarded.

    Status OK delivers, but where the session was lost: there, only what was settled before is delivered.
    """
    name = "DeliveredXorDiscarded"
    for run in history.runs():
        kept, discards = history.of(run, KeepBegan), history.of(run, DiscardBegan)
        outcomes = {record.outcome for record in history.of(run, CancelAnswered)}
        outcomes |= {record.outcome for record in history.of(run, ConfirmAnswered)}
        ended_ok = any(record.code == "OK" for record in _ended(history, run))
        if discards and not kept:
            _broke(name, run, "discard got an episode that keep never saw")
        if discards and discards[0].episode_id != kept[0].episode_id:
            _broke(name, run, f"keep saw episode {kept[0].episode_id!r}, discard {discards[0].episode_id!r}")
        if ended_ok and hooked and not kept:
            _broke(name, run, "the episode was delivered, but keep never saw it")
        settled = outcomes & {"TOO_LATE", "CONFIRMED"} or history.of(run, Returned)
        lost = history.of(run, SessionLost)
        delivered = (settled or (ended_ok and not lost)) and "DISCARDED" not in outcomes
        if kept and delivered and discards:
            _broke(name, run, "the episode was delivered and discarded too")
        if kept and not delivered and not discards:
            _broke(name, run, "the episode was kept, not delivered, and never discarded")


def cancel_answered_truthfully(history: History) -> None:
    """Every Cancel was answered, all of one run alike, and what the answer says is what became of the run."""
    name = "CancelAnsweredTruthfully"
    for run in history.runs():
        answers = history.of(run, CancelAnswered)
        if len(answers) != len(history.of(run, CancelSent)):
            _broke(name, run, f"{len(history.of(run, CancelSent))} cancels had {len(answers)} answers")
        outcomes = [answer.outcome for answer in answers if answer.outcome in _CANCEL_OUTCOMES]
        changes = list(dict.fromkeys(outcomes))
        if len(changes) > 1 and changes != ["REMEMBERED", "ABORTED"]:
            _broke(name, run, f"repeated cancels were answered {', then '.join(changes)}")
        ended_ok = any(record.code == "OK" for record in _ended(history, run))
        discards = history.of(run, DiscardBegan)
        if "ABORTED" in outcomes and ended_ok:
            _broke(name, run, "a cancel was answered ABORTED, but the run ended OK")
        if "DISCARDED" in outcomes and history.of(run, KeepBegan) and not discards:
            _broke(name, run, "a cancel was answered DISCARDED, but discard was not called")
        if "TOO_LATE" in outcomes and discards:
            _broke(name, run, "a cancel was answered TOO_LATE, but the episode was discarded")
        remembered = [answer.seq for answer in answers if answer.outcome == "REMEMBERED"]
        asked = history.of(run, Asked)
        if remembered and asked and asked[0].seq > remembered[0] and ended_ok:
            _broke(name, run, "a cancel was REMEMBERED, but the run that came later ended OK")


def confirmed_is_final(history: History) -> None:
    """A confirmed run is never taken back, and what a confirmation was answered DISCARDED never returned."""
    name = "ConfirmedIsFinal"
    for run in history.runs():
        answers = history.of(run, ConfirmAnswered)
        if len(answers) > len(sent := history.of(run, ConfirmSent)):
            _broke(name, run, f"{len(sent)} confirmations had {len(answers)} answers")
        confirms = {answer.outcome for answer in answers}
        cancels = {answer.outcome for answer in history.of(run, CancelAnswered)}
        returned = bool(history.of(run, Returned))
        discards = history.of(run, DiscardBegan)
        if "CONFIRMED" in confirms or returned:
            how = "confirmed" if "CONFIRMED" in confirms else "returned"
            if discards:
                _broke(name, run, f"the episode was {how}, and discarded all the same")
            if lies := cancels & {"ABORTED", "DISCARDED"}:
                _broke(name, run, f"the episode was {how}, but a cancel was answered {lies.pop()}")
        if "DISCARDED" in confirms:
            if returned or "CONFIRMED" in confirms:
                how = "returned" if returned else "CONFIRMED too"
                _broke(name, run, f"a confirmation was answered DISCARDED, but the episode was {how}")
            if history.of(run, KeepBegan) and not discards:
                _broke(name, run, "a confirmation was answered DISCARDED, but discard was not called")
            if "TOO_LATE" in cancels:
                _broke(name, run, "a confirmation was answered DISCARDED, but a cancel TOO_LATE")


def relayed_verbatim(history: History) -> None:
    """The bytes that reached the client are those that the worker sent, in order, however joined."""
    for run in history.runs():
        passed = history.of(run, Passed)
        sent = b"".join(record.data for record in passed if record.hop == "worker")
        received = b"".join(record.data for record in passed if record.hop == "client")
        ended_ok = any(record.code == "OK" for record in _ended(history, run))
        # What ends early may lose its tail, and nothing else.
        if sent != received and (ended_ok or not sent.startswith(received)):
            _broke("RelayedVerbatim", run, f"{len(sent)} bytes were sent, {len(received)} others received")


def no_training_array_on_the_wire(history: History) -> None:
    """No message has a field for training arrays, nor one that its schema does not know."""
    for run in history.runs():
        for record in history.of(run, Passed):
            for path, message in submessages(delta_pb2.DeltaStream.FromString(record.data), "stream"):
                for field, _ in message.ListFields():
                    if field.name in ARRAY_FIELDS:
                        _broke("NoTrainingArrayOnTheWire", run, f"{path}.{field.name} crossed")
                if len(unknown := UnknownFieldSet(message)):
                    number = unknown[0].field_number
                    _broke("NoTrainingArrayOnTheWire", run, f"{path} has an unknown field {number}")


def outcomes_add_up(history: History, asked: int) -> None:
    """So many runs were asked for, and each of them has exactly one outcome."""
    requests = sum(isinstance(record, Asked) for record in history)
    if requests != asked:
        _broke("OutcomesAddUp", "", f"{asked} runs should have been asked for, {requests} were")
    one_outcome_each(history)


def one_outcome_each(history: History) -> None:
    """Each request has exactly one outcome."""
    for run in history.runs():
        requests, outcomes = len(history.of(run, Asked)), len(history.of(run, Ended))
        if requests != outcomes:
            _broke("OutcomesAddUp", run, f"asked {requests} times, it has {outcomes} outcomes")


def assembly_equals_source(assembled: Message, source: Message) -> None:
    """What the receiver put together is what the environment made."""
    if (where := difference(assembled, source)) is not None:
        _broke("AssemblyEqualsSource", "", where)


def nothing_left_behind(before: Snapshot, after: Snapshot) -> None:
    """No process, task, thread or open file is there that was not there before."""
    for what in ("processes", "tasks", "threads"):
        if left := getattr(after, what) - getattr(before, what):
            _broke("NothingLeftBehind", "", f"{what} are left: {', '.join(sorted(left))}")
    if left := after.files - before.files:
        _broke("NothingLeftBehind", "", f"files are left open: {dict(left)}")


def _broke(promise: str, run: str, what: str) -> NoReturn:
    raise GuaranteeBroken(f"broke {promise}: {f'run {run[:8]}: ' if run else ''}{what}")


def _at_most_one(run: str, what: str, records: Sequence[Record]) -> None:
    if len(records) > 1:
        _broke("SettledOnce", run, f"{what} {len(records)} times")


def _ended(history: History, run: str) -> list[Ended]:
    """The statuses of the run; a second run under its id was refused and is none of it."""
    return [end for end in history.of(run, Ended) if end.reason != "DUPLICATE_REQUEST_ID"]

"""Builds histories for tests of the oracle: a good one, to break in one place."""

from __future__ import annotations

from envtrio.v1 import delta_pb2, episode_pb2

from tests.helpers.history import (
    Asked,
    CancelAnswered,
    CancelSent,
    ConfirmAnswered,
    ConfirmSent,
    DiscardBegan,
    DiscardReturned,
    Ended,
    History,
    KeepBegan,
    KeepReturned,
    Passed,
    Returned,
)

RUN = "0123456789abcdef" * 2
OTHER = "f" * 32


def _nodes(count: int) -> list[episode_pb2.Node]:
    return [episode_pb2.Node(token_ids=bytes(4), mask=b"\1") for _ in range(count)]


def opening(trace: str = "t", *, discard: bool = False, nodes: int = 1) -> delta_pb2.TraceDelta:
    """The first delta of a trace, with so many nodes of one token."""
    append = episode_pb2.Trace(header=episode_pb2.TraceHeader(trace_id=trace), nodes=_nodes(nodes))
    return delta_pb2.TraceDelta(trace_id=trace, discard=discard, append=append)


def growth(seq: int, trace: str = "t", *, nodes: int = 1) -> delta_pb2.TraceDelta:
    """A later delta."""
    return delta_pb2.TraceDelta(trace_id=trace, seq=seq, append=episode_pb2.Trace(nodes=_nodes(nodes)))


def closing(trace: str = "t") -> delta_pb2.TraceDelta:
    """A discard without a new opening."""
    return delta_pb2.TraceDelta(trace_id=trace, discard=True)


def counted(trace: str = "t", *, deltas: int = 2, nodes: int = 2, tokens: int = 2) -> delta_pb2.TraceCounts:
    """What a reply says of a trace."""
    return delta_pb2.TraceCounts(trace_id=trace, deltas=deltas, nodes=nodes, tokens=tokens)


def reply(*counts: delta_pb2.TraceCounts) -> delta_pb2.RunReply:
    """A reply with these counts."""
    return delta_pb2.RunReply(head=episode_pb2.EpisodeHead(ok=True), traces=counts)


def message(*deltas: delta_pb2.TraceDelta, reply: delta_pb2.RunReply | None = None) -> bytes:
    """One message, serialized."""
    return delta_pb2.DeltaStream(deltas=deltas, reply=reply).SerializeToString()


GOOD_STREAM = (message(opening()), message(growth(1), reply=reply(counted())))


def passed(*messages: bytes, run: str = RUN, hop: str = "client") -> History:
    """A history of nothing but these messages."""
    history = History()
    for data in messages:
        history.note(Passed, run, hop=hop, data=data)
    return history


def run_history(
    *,
    run: str = RUN,
    code: str = "OK",
    reason: str = "",
    kept: bool = True,
    discarded: bool = False,
    cancels: tuple[str, ...] = (),
    confirms: tuple[str, ...] = (),
    returned: bool = False,
    stream: tuple[bytes, ...] | None = None,
) -> History:
    """One run from its request to its last discard, as it should go."""
    history = History()
    history.note(Asked, run)
    for data in (GOOD_STREAM if code == "OK" else GOOD_STREAM[:1]) if stream is None else stream:
        history.note(Passed, run, hop="client", data=data)
    if kept:
        history.note(KeepBegan, run, episode_id="e")
        history.note(KeepReturned, run)
    history.note(Ended, run, code=code, reason=reason)
    for outcome in confirms:
        history.note(ConfirmSent, run)
        history.note(ConfirmAnswered, run, outcome=outcome)
    if returned:
        history.note(Returned, run)
    for outcome in cancels:
        history.note(CancelSent, run)
        history.note(CancelAnswered, run, outcome=outcome)
    if discarded:
        history.note(DiscardBegan, run, episode_id="e")
        history.note(DiscardReturned, run)
    return history


def together(*histories: History) -> History:
    """All records of several histories."""
    return History([record for history in histories for record in history])

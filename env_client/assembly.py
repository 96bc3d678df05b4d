"""Putting an episode together from its deltas. Pure: no grpc, no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from envtrio.v1.delta_pb2 import DeltaStream, Pending, RunReply, TraceCounts, TraceDelta
from envtrio.v1.episode_pb2 import Episode, Trace
from google.protobuf.message import DecodeError

from env_client.errors import AssemblyError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKEN_BYTES: Final = 4
_REPORT: Final = "Report it with the worker's log; the run cannot be saved."


@dataclass(slots=True)
class _OpenTrace:
    trace: Trace
    next_seq: int = 1
    # Serialized: few look at it, and a reference would hold the whole message in memory.
    pending: bytes = b""


class EpisodeAssembly:
    """One episode while it grows.

    Feed every message of the stream to `apply` in order, then call `finish`. Merging is protobuf's own, costs
    what the delta costs, and never copies a trace. Whatever breaks the grammar of delta.proto raises
    `AssemblyError` at once; from then on the assembly is broken and every call raises it again.
    """

    def __init__(self) -> None:
        # Traces grow inside the episode that `finish` returns: appending a finished message would copy it.
        self._episode = Episode()
        # By id, in the order of `_episode.traces`.
        self._open: dict[str, _OpenTrace] = {}
        self._reply: RunReply | None = None
        # What broke it. Not the exception: its traceback holds this object, and so would keep it alive.
        self._broken: str | None = None

    @property
    def traces(self) -> Mapping[str, Trace]:
        """The open traces by id, as far as they have grown. Live: read them, do not change them."""
        return {trace_id: entry.trace for trace_id, entry in self._open.items()}

    @property
    def replied(self) -> bool:
        """Whether the reply has arrived."""
        return self._reply is not None

    def pending(self, trace_id: str) -> Pending | None:
        """What the model is being asked right now, or None where nothing is (or no such trace is open)."""
        entry = self._open.get(trace_id)
        pending = Pending.FromString(entry.pending) if entry else Pending()
        return pending if pending.messages else None

    def apply(self, delta_stream: DeltaStream | bytes) -> DeltaStream:
        """Apply one message of the stream and return it, decoded.

        Args:
            delta_stream: the message, or its serialized form (several may be joined end to end).

        Raises:
            AssemblyError: it cannot be decoded, or breaks the grammar of the stream.
        """
        if self._broken is not None:
            raise AssemblyError(self._broken)
        try:
            message = _decoded(delta_stream)
            self._apply(message)
        except AssemblyError as error:
            self._broken = str(error)
            raise
        return message

    def finish(self) -> Episode:
        """The whole episode, its traces in the order of the reply, without pendings and unknown fields.

        Raises:
            AssemblyError: the reply is missing or incomplete, or its counts are not those of the traces.
        """
        if self._broken is not None:
            raise AssemblyError(self._broken)
        reply = self._reply
        if reply is None:
            raise AssemblyError(
                f"the stream ended without a reply; received so far: {len(self._open)} traces. {_REPORT}"
            )
        if not reply.HasField("head"):
            raise AssemblyError(f"reply.head: found none, expected the episode's head. {_REPORT}")
        order = {counts.trace_id: place for place, counts in enumerate(reply.traces)}
        if len(order) != len(reply.traces):
            raise AssemblyError(
                f"reply.traces: found {len(reply.traces)} entries for {len(order)} traces, "
                f"expected one for each. {_REPORT}"
            )
        for trace_id in self._open:
            if trace_id not in order:
                raise _violation(trace_id, "reply.traces", "no entry", "one, for the trace is open")
        for counts in reply.traces:
            self._check_counts(counts)
        self._episode.head.CopyFrom(reply.head)
        self._episode.traces.sort(key=lambda trace: order[trace.header.trace_id])
        self._episode.DiscardUnknownFields()
        return self._episode

    def _apply(self, message: DeltaStream) -> None:
        if self._reply is not None:
            for delta in message.deltas:
                found = f"delta seq {delta.seq} after the reply"
                raise _violation(delta.trace_id, "stream", found, "its end")
            if message.HasField("reply"):
                raise AssemblyError(f"stream: found a second reply, expected its end. {_REPORT}")
        for delta in message.deltas:
            self._apply_delta(delta)
        if message.HasField("reply"):
            self._reply = RunReply()
            self._reply.CopyFrom(message.reply)

    def _apply_delta(self, delta: TraceDelta) -> None:
        trace_id = delta.trace_id
        entry = self._open.get(trace_id)
        if delta.discard:
            if entry is None:
                raise _violation(trace_id, "discard", "a discard of a trace that is not open", "an opening")
            self._forget(trace_id)
            entry = None
            if not delta.HasField("append"):
                if delta.seq != 0 or delta.HasField("pending"):
                    found = f"seq {delta.seq}, pending {'' if delta.HasField('pending') else 'un'}set"
                    raise _violation(trace_id, "discard", found, "seq 0 and no pending without an append")
                return
        append = delta.append  # Once: each time makes a Python object of it.
        if entry is None:
            entry = self._opened(delta)
        elif delta.seq != entry.next_seq:
            raise _violation(trace_id, "seq", str(delta.seq), str(entry.next_seq))
        elif append.HasField("header"):
            raise _violation(trace_id, "append.header", f"a second one at seq {delta.seq}", "one an opening")
        else:
            entry.next_seq += 1
        entry.trace.MergeFrom(append)
        if delta.HasField("pending"):
            entry.pending = delta.pending.SerializeToString()

    def _opened(self, delta: TraceDelta) -> _OpenTrace:
        if delta.seq != 0:
            raise _violation(delta.trace_id, "seq", str(delta.seq), "0, for the trace is not open")
        if not delta.append.HasField("header"):
            raise _violation(delta.trace_id, "append.header", "none at seq 0", "the trace's header")
        if delta.append.header.trace_id != delta.trace_id:
            found = repr(delta.append.header.trace_id)
            raise _violation(delta.trace_id, "append.header.trace_id", found, repr(delta.trace_id))
        entry = self._open[delta.trace_id] = _OpenTrace(self._episode.traces.add())
        return entry

    def _forget(self, trace_id: str) -> None:
        # Rare, so that a walk over the traces is cheap enough. The bytes go with the whole episode.
        del self._episode.traces[list(self._open).index(trace_id)]
        del self._open[trace_id]

    def _check_counts(self, counts: TraceCounts) -> None:
        entry = self._open.get(counts.trace_id)
        if entry is None:
            raise _violation(counts.trace_id, "reply.traces", "an entry", "none, for the trace is not open")
        trace = entry.trace
        assembled = {
            "deltas": entry.next_seq,
            "nodes": len(trace.nodes),
            "calls": len(trace.calls),
            "errors": len(trace.errors),
            "links": len(trace.links),
            "rewards": len(trace.rewards),
            "metrics": len(trace.metrics),
            "info_entries": len(trace.info_json),
            "tokens": sum([len(node.token_ids) for node in trace.nodes]) // _TOKEN_BYTES,
        }
        for field, found in assembled.items():
            expected = getattr(counts, field)
            if found != expected:
                raise _violation(counts.trace_id, f"count of {field}", str(found), str(expected))


def _decoded(delta_stream: DeltaStream | bytes) -> DeltaStream:
    if isinstance(delta_stream, DeltaStream):
        return delta_stream
    try:
        return DeltaStream.FromString(delta_stream)
    except DecodeError as error:
        raise AssemblyError(
            f"message of {len(delta_stream)} bytes: found no valid DeltaStream ({error}). {_REPORT}"
        ) from error


def _violation(trace_id: str, what: str, found: str, expected: str) -> AssemblyError:
    return AssemblyError(f"trace {trace_id!r}, {what}: found {found}, expected {expected}. {_REPORT}")

"""The worker's copy of an episode that is written in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import NodeAdded, SamplingMask, TopLogprobs
from env_worker.domain.replay import replay
from env_worker.isolate.messages import (
    Began,
    Discarded,
    Ended,
    Grew,
    HeadSet,
    NodeAgain,
    NodeArrays,
    Opened,
    TraceSet,
)

if TYPE_CHECKING:
    from env_worker.domain import Change, Episode, Trace


class Mirror:
    """Applies what a `Reporter` sends to an episode, which then equals the reporter's, journals included.

    For the thread that writes the episode. ValueError and KeyError on messages in no order of a reporter's.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode: Final = episode
        self._traces: Final[dict[str, Trace]] = {}

    def apply(self, message: Any) -> Ended | None:
        """Apply one message; the last is returned."""
        match message:
            case Began():
                pass
            case Grew(trace_id, generation, changes):
                trace = self._traces[trace_id]
                replay(trace, generation, [self._whole(trace, change) for change in changes])
            case Opened(trace_id, agent, trainable, model, started_at):
                self._traces[trace_id] = self._episode.new_trace(
                    agent, trainable=trainable, model=model, trace_id=trace_id, started_at=started_at
                )
            case Discarded(trace_id):
                self._episode.discard_trace(self._traces.pop(trace_id))
            case HeadSet(ok, errors, owner, group_id):
                self._episode.ok, self._episode.errors = ok, errors
                self._episode.owner, self._episode.group_id = owner, group_id
            case NodeArrays():
                self._set_arrays(message)
            case TraceSet(trace_id, attributes):
                trace = self._traces[trace_id]
                for name, value in attributes.items():
                    setattr(trace, name, value)
            case Ended():
                self._episode.finished_at = message.finished_at
                return message
            case _:
                raise ValueError(f"an environment's process sent a {type(message).__name__}")
        return None

    def _set_arrays(self, arrays: NodeArrays) -> None:
        node = self._traces[arrays.trace_id].nodes[arrays.node]
        node.holes = arrays.holes
        node.routed_experts = arrays.routed_experts
        # Made anew, because only construction checks them and makes them read-only.
        if (mask := arrays.sampling_mask) is not None:
            node.sampling_mask = SamplingMask(mask.ids, mask.counts)
        if (head := arrays.top_logprobs) is not None:
            node.top_logprobs = TopLogprobs(head.ids, head.logprobs, head.counts)

    @staticmethod
    def _whole(trace: Trace, change: Change | NodeAgain) -> Change:
        if isinstance(change, NodeAgain):
            return NodeAdded(change.index, trace.nodes[change.index])
        return change

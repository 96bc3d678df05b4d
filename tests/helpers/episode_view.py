"""An episode as plain values, to compare two that were made in different processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from env_worker.domain import CallAdded, Finished, NodeAdded

if TYPE_CHECKING:
    from env_worker.domain import Change, Episode, Node, Trace


def episode_view(episode: Episode, *, times: bool = True) -> dict[str, Any]:
    """Everything that an episode holds, with its traces' journals; without times where `times` is False."""
    return {
        "id": episode.id,
        "ok": episode.ok,
        "errors": [_error(error, times) for error in episode.errors],
        "finished": episode.finished_at,
        "traces": [_trace(trace, times) for trace in episode.traces],
    }


def _trace(trace: Trace, times: bool) -> dict[str, Any]:
    return {
        "head": (trace.id, trace.agent, trace.trainable, trace.model),
        "times": (trace.started_at, trace.finished_at) if times else trace.finished_at is not None,
        "nodes": [_node(node, times) for node in trace.nodes],
        "calls": [_call(call, times) for call in trace.calls],
        "links": list(trace.links),
        "errors": [_error(error, times) for error in trace.errors],
        "rewards": list(trace.rewards.items()),
        "metrics": list(trace.metrics.items()),
        "info": list(trace.info.json_texts().items()),
        "said": (trace.ok, trace.stop_condition, trace.tools_json, trace.pending),
        "generation": trace.journal.generation,
        "journal": [_change(change, trace, times) for change in trace.journal.entries],
    }


def _change(change: Change, trace: Trace, times: bool) -> Any:
    match change:
        case NodeAdded(index, node):
            assert trace.nodes[index] is node
            return ("node", index)
        case CallAdded(index, call):
            assert trace.calls[index] is call
            return ("call", index)
        case Finished() if not times:
            return "finished"
    return change


def _call(call: Any, times: bool) -> Any:
    error = None if call.error is None else _error(call.error, times)
    clock = (call.started_at, call.duration_seconds) if times else ()
    counts = (call.prompt_tokens, call.completion_tokens, call.cached_tokens, call.attempt)
    texts = (call.model, call.endpoint, call.dialect, call.finish_reason)
    return (call.node, texts, counts, call.simulated, call.weight_versions, error, clock)


def _error(error: Any, times: bool) -> Any:
    return (error.type, error.message, error.phase, error.occurred_at if times else None)


def _node(node: Node, times: bool) -> Any:
    return (
        node.message,
        (node.parent, node.sampled, node.tools_json, node.created_at if times else None),
        [_array(array) for array in (node.token_ids, node.mask, node.is_content, node.logprobs)],
        None if node.routed_experts is None else _array(node.routed_experts),
        None if (mask := node.sampling_mask) is None else [_array(mask.ids), _array(mask.counts)],
        None
        if (head := node.top_logprobs) is None
        else [_array(head.ids), _array(head.logprobs), _array(head.counts)],
        dict(node.holes),
    )


def _array(array: Any) -> Any:
    return (array.dtype.str, array.shape, array.tobytes(), array.flags.writeable)

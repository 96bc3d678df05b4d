"""What the worker holds of an episode whose reply has left."""

from __future__ import annotations

from env_worker.domain import Episode


def without_nodes(episode: Episode) -> Episode:
    """An episode of the same id, head, trace ids and infos, and nothing else: what a late discard gets."""
    rest = Episode(
        episode.id, episode.environment, episode.task, episode.request_id, episode.owner, episode.group_id
    )
    for trace in episode.traces:
        copy = rest.new_trace(trace.agent, trainable=trace.trainable, model=trace.model, trace_id=trace.id)
        copy.started_at, copy.finished_at = trace.started_at, trace.finished_at
        copy.info.update(trace.info)
    rest.errors, rest.ok = episode.errors, episode.ok
    rest.started_at, rest.finished_at = episode.started_at, episode.finished_at
    return rest

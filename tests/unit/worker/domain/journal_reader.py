"""A reader that follows traces by their journals, as the diff does, and the steps of a writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from env_worker.domain import (
    Call,
    CallAdded,
    Change,
    Episode,
    EpisodeError,
    ErrorAdded,
    Finished,
    InfoSet,
    Link,
    LinkAdded,
    Message,
    MetricSet,
    NodeAdded,
    OkSet,
    Pending,
    PendingSet,
    RewardSet,
    StopSet,
    ToolsSet,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Replica:
    """What a reader knows of a trace, from its journal alone."""

    nodes: list[object] = field(default_factory=list)
    calls: list[object] = field(default_factory=list)
    errors: list[object] = field(default_factory=list)
    links: list[object] = field(default_factory=list)
    rewards: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    ok: bool = True
    stop: str = ""
    tools: str = ""
    pending: Pending | None = None
    finished_at: float | None = None


def replay(entries: Iterable[Change]) -> Replica:
    """Apply `entries` in order, checking that each refers only to what came before it."""
    copy = Replica()
    for change in entries:
        match change:
            case NodeAdded(index, node):
                assert index == len(copy.nodes)
                assert node.parent is None or node.parent < index
                copy.nodes.append(node)
            case CallAdded(index, call):
                assert index == len(copy.calls)
                assert call.node is None or call.node < len(copy.nodes)
                copy.calls.append(call)
            case ErrorAdded(index, error):
                assert index == len(copy.errors)
                copy.errors.append(error)
            case LinkAdded(index, link):
                assert index == len(copy.links)
                assert max(link.source, link.target) < len(copy.nodes)
                copy.links.append(link)
            case RewardSet(name, reward):
                copy.rewards[name] = reward
            case MetricSet(name, value):
                copy.metrics[name] = value
            case InfoSet(key, text):
                copy.info[key] = text
            case OkSet(ok):
                copy.ok = ok
            case StopSet(condition):
                copy.stop = condition
            case ToolsSet(text):
                copy.tools = text
            case PendingSet(pending):
                assert pending is None or pending.parent is None or pending.parent < len(copy.nodes)
                copy.pending = pending
            case Finished(unix_ns):
                assert copy.finished_at is None
                copy.finished_at = unix_ns / 1e9
    return copy


def state(trace: Trace) -> Replica:
    """The same, read from the trace itself."""
    return Replica(
        nodes=list(trace.nodes),
        calls=list(trace.calls),
        errors=list(trace.errors),
        links=list(trace.links),
        rewards=dict(trace.rewards),
        metrics=dict(trace.metrics),
        info=dict(trace.info.json_texts()),
        ok=trace.ok,
        stop=trace.stop_condition,
        tools=trace.tools_json,
        pending=trace.pending,
        finished_at=trace.finished_at,
    )


class Reader:
    """Follows an episode as the diff does: one position and one generation for each trace."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.seen: dict[str, tuple[int, list[Change]]] = {}

    def drain(self) -> None:
        for trace in self.episode.take_touched():
            if trace.discarded:
                self.seen.pop(trace.id, None)
                continue
            journal = trace.journal
            generation, entries = self.seen.get(trace.id, (-1, []))
            known = len(replay(entries).nodes)
            if generation != journal.generation:
                entries = []
            entries.extend(journal.entries[len(entries) :])
            self.seen[trace.id] = (journal.generation, entries)
            assert len(replay(entries).nodes) >= known, "a new generation begins with all that was known"

    def check_complete(self) -> None:
        """After a last drain, every trace is known as it is, and no other."""
        self.drain()
        assert {name: replay(entries) for name, (_, entries) in self.seen.items()} == {
            trace.id: state(trace) for trace in self.episode.traces
        }


def apply(episode: Episode, step: tuple[Any, ...]) -> None:
    """Do one step on the episode's last trace, as far as it can be done."""
    trace = episode.traces[-1]
    count = len(trace.nodes)
    match step:
        case ("node", parent, sampled):
            trace.add_node(Message.user("x"), [1, 2], parent=parent % count if count else None,
                           sampled=sampled, logprobs=[-1, -2] if sampled else None)  # fmt: skip
        case ("call", node):
            trace.add_call(Call(node=node % count if count else None))
        case ("link", source, target) if count:
            trace.add_link(Link(source % count, target % count, "semantic"))
        case ("error", number):
            trace.add_error(EpisodeError("Error", str(number)))
        case ("reward", name, value):
            trace.set_reward(name, value)
        case ("metric", name, value):
            trace.set_metric(name, value)
        case ("info", key, value):
            trace.info[key] = {"value": value}
        case ("ok", ok):
            trace.set_ok(ok)
        case ("stop", condition):
            trace.set_stop(condition)
        case ("tools", name):
            trace.set_tools(f'[{{"name":"{name}"}}]')
        case ("pending", parent, messages):
            trace.set_pending([Message.user("?")] * messages, parent % count if count else None)
        case ("clear", _):
            trace.clear_pending()
        case ("remove", "reward", name) if name in trace.rewards:
            trace.remove_reward(name)
        case ("remove", "metric", name) if name in trace.metrics:
            trace.remove_metric(name)
        case ("remove", "info", key):
            trace.info.pop(key, None)
        case ("remove", "infos", _):
            trace.info.clear()
        case ("rewrite", number):
            trace.rewrite_errors([EpisodeError("Early", str(number)), *trace.errors])
        case ("finish",):
            trace.finish()
        case ("new",):
            episode.new_trace()
        case ("discard",) if len(episode.traces) > 1:
            episode.discard_trace(trace)
            trace.set_metric("late", 1)
            trace.set_ok(False)

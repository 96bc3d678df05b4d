"""Rebuilds a trace from the journal of another: that of the process in which the environment writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from env_worker.domain.journal import (
    CallAdded,
    Change,
    ErrorAdded,
    Finished,
    InfoSet,
    Journal,
    LinkAdded,
    MetricSet,
    NodeAdded,
    OkSet,
    PendingSet,
    RewardSet,
    StopSet,
    ToolsSet,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from env_worker.domain.trace import Trace


def replay(trace: Trace, generation: int, changes: Iterable[Change]) -> None:
    """Go on with `changes`, those of a journal of that generation that follow the ones in `trace.journal`.

    If the trace's journal is of another generation, `changes` are that journal from its beginning: they
    rebuild the trace. Either way the trace and its journal then equal the other's, training arrays aside, and
    a reader in another thread sees what it would have seen of the other. For the one thread that writes the
    trace.
    """
    # The state first, as nobody reads it while it is written, then the journal, which is read meanwhile.
    entries, goes_on = list(changes), generation == trace.journal.generation
    if not goes_on:
        _clear(trace)
    for change in entries:
        _apply(trace, change)
    if goes_on:
        trace.journal.entries.extend(entries)  # one step, as where they came from
    else:
        trace.journal = Journal(generation, entries)
    if not trace.discarded:
        trace.touch()


def _clear(trace: Trace) -> None:
    for items in (trace._nodes, trace._calls, trace._links, trace._errors):
        items.clear()
    trace._rewards.clear()
    trace._metrics.clear()
    trace.info._texts.clear()
    trace._ok = None
    trace.stop_condition = trace.tools_json = ""
    trace.pending = trace.finished_at = None


def _apply(trace: Trace, change: Change) -> None:
    match change:
        case NodeAdded(_, node):
            trace._nodes.append(node)
        case CallAdded(_, call):
            trace._calls.append(call)
        case ErrorAdded(_, error):
            trace._errors.append(error)
        case LinkAdded(_, link):
            trace._links.append(link)
        case RewardSet(name, reward):
            trace._rewards[name] = reward
        case MetricSet(name, value):
            trace._metrics[name] = value
        case InfoSet(key, json_text):
            trace.info._texts[key] = json_text
        case OkSet(ok):
            trace._ok = ok
        case StopSet(condition):
            trace.stop_condition = condition
        case ToolsSet(json_text):
            trace.tools_json = json_text
        case PendingSet(pending):
            trace.pending = pending
        case Finished(unix_ns):
            trace.finished_at = unix_ns / 1e9

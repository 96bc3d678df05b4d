"""Tells the worker what an environment writes, as it writes it."""

from __future__ import annotations

import copy
import logging
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from env_worker.domain import Change, EpisodeError, InvalidTaskError, NodeAdded
from env_worker.isolate.messages import (
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
    from collections.abc import Callable

    from env_worker.domain import Episode, Trace

logger = logging.getLogger(__name__)

TRACE_ATTRIBUTES: Final = ("agent", "trainable", "model", "started_at", "finished_at")


@dataclass(slots=True)
class _Place:
    """Up to where a trace was sent: a place in its journal, and how many of its nodes the worker has."""

    generation: int = 0
    position: int = 0
    nodes: int = 0


class Reporter:
    """Sends an episode's changes: called on each, it returns when that change was sent, in the thread that
    wrote.

    So what an environment has written before it takes its process down is known to the worker. Training
    arrays, which change until the end and are not streamed, are sent once, by `finish`.

    Args:
        episode: whose `on_change` this becomes.
        send: writes one message; what it raises fails the run.
        on_failure: called once, where a change cannot be sent.
    """

    def __init__(
        self, episode: Episode, send: Callable[[object], None], on_failure: Callable[[], None]
    ) -> None:
        self._episode: Final = episode
        self._send: Final = send
        self._on_failure: Final = on_failure
        self._failure: BaseException | None = None
        self._places: Final[dict[Trace, _Place]] = {}
        self._head = _head_of(episode)
        self._lock: Final = threading.Lock()
        self._pid: Final = os.getpid()
        episode.on_change = self

    def __call__(self) -> None:
        """Send what is new."""
        if os.getpid() != self._pid:
            return  # a child that the environment forked has a copy of the connection
        with self._lock:
            if self._failure is None:
                try:
                    self._send_changes()
                except Exception as error:
                    logger.exception("what the environment wrote cannot be sent; its run fails")
                    self._failure = error
                    self._on_failure()

    def finish(self, raised: BaseException | None) -> None:
        """Send what is left, the arrays, and how the run ended: with `raised`, or with what could not be
        sent."""
        self()
        if self._failure is None:
            try:
                self._send_arrays()
            except Exception as failure:
                self._failure = failure
        raised = self._failure or raised
        error = None if raised is None else EpisodeError.from_exception(raised, phase="environment")
        invalid_task = isinstance(raised, InvalidTaskError)
        self._send(Ended(error, invalid_task, self._episode.finished_at))

    def _send_changes(self) -> None:
        for trace in self._episode.take_touched():
            if trace.discarded:
                if self._places.pop(trace, None) is not None:
                    self._send(Discarded(trace.id))
            else:
                self._send_trace(trace)
        if (head := _head_of(self._episode)) != self._head:
            self._head = head
            self._send(head)

    def _send_trace(self, trace: Trace) -> None:
        if (place := self._places.get(trace)) is None:
            place = self._places[trace] = _Place()
            self._send(Opened(trace.id, trace.agent, trace.trainable, trace.model, trace.started_at))
        journal = trace.journal
        if place.generation != journal.generation:
            place.generation, place.position = journal.generation, 0
        elif place.position == len(journal.entries):
            return
        changes = journal.entries[place.position :]
        place.position += len(changes)
        known = place.nodes
        place.nodes = max([known, *(c.index + 1 for c in changes if isinstance(c, NodeAdded))])
        self._send(Grew(trace.id, journal.generation, tuple(_slim(change, known) for change in changes)))

    def _send_arrays(self) -> None:
        for trace in self._episode.traces:
            for index, node in enumerate(trace.nodes):
                arrays = (node.routed_experts, node.sampling_mask, node.top_logprobs)
                if node.holes or any(array is not None for array in arrays):
                    self._send(NodeArrays(trace.id, index, *arrays, holes=dict(node.holes)))
            self._send(TraceSet(trace.id, {name: getattr(trace, name) for name in TRACE_ATTRIBUTES}))


def _head_of(episode: Episode) -> HeadSet:
    return HeadSet(episode.ok, episode.errors, episode.owner, episode.group_id)


def _slim(change: Change, known: int) -> Change | NodeAgain:
    if not isinstance(change, NodeAdded):
        return change
    if change.index < known:
        return NodeAgain(change.index)
    node = copy.copy(change.node)
    node.drop_arrays()
    return NodeAdded(change.index, node)

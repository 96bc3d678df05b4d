"""A trace: one agent's part of an episode, as a graph of nodes that grows and is announced while it grows."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from env_worker.domain.graph import NodeGraph
from env_worker.domain.info import TraceInfo
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
from env_worker.domain.messages import Message
from env_worker.domain.node import Node
from env_worker.domain.records import Call, EpisodeError, Link, Pending, Reward, check_finite, check_type
from env_worker.domain.text import check_text, decode_json
from env_worker.domain.views import ListView
from env_worker.domain.weakly import weakly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from env_worker.domain.arrays import SamplingMask, TopLogprobs


class Trace(NodeGraph):
    """One agent's nodes, model calls, rewards, metrics, info, errors and links. Made by `Episode.new_trace`.

    Written by one thread at a time, through its methods only; each of them announces what it changed.
    `nodes`, `calls`, `errors`, `links` are read-only sequences, `rewards` and `metrics` read-only mappings,
    `info` a mapping to write to. Times are unix seconds. `ok` is True unless `set_ok(False)` was called: an
    error by itself does not change it.
    """

    def __init__(
        self,
        id: str,
        agent: str = "agent",
        trainable: bool = True,
        model: str = "",
        *,
        on_touch: Callable[[Trace], None] | None = None,
    ) -> None:
        super().__init__()
        for name, text in (("id", id), ("agent", agent), ("model", model)):
            check_text(text, f"trace's {name}")
        self.id = id
        self.agent = agent
        self.trainable = trainable
        self.model = model
        self.started_at = time.time()
        self.finished_at: float | None = None
        self.stop_condition = ""
        self.tools_json = ""
        self.pending: Pending | None = None
        self.journal = Journal()
        self.discarded = False
        self.dirty = False
        """True from the first announcement until the reader clears it, which it does before it reads the
        journal.
        """
        self.info = TraceInfo(weakly(Trace._info_set, self), weakly(Trace._info_removed, self))
        self._ok: bool | None = None
        self._calls: list[Call] = []
        self._links: list[Link] = []
        self._errors: list[EpisodeError] = []
        self._rewards: dict[str, Reward] = {}
        self._metrics: dict[str, float] = {}
        self.calls: Sequence[Call] = ListView(self._calls)
        self.links: Sequence[Link] = ListView(self._links)
        self.errors: Sequence[EpisodeError] = ListView(self._errors)
        self.rewards: Mapping[str, Reward] = MappingProxyType(self._rewards)
        self.metrics: Mapping[str, float] = MappingProxyType(self._metrics)
        self._on_touch = on_touch

    def __repr__(self) -> str:
        return f"Trace({self.id!r}, agent={self.agent!r}, nodes={len(self._nodes)}, reward={self.reward})"

    @property
    def ok(self) -> bool:
        """Whether the trace went well, as far as the environment said."""
        return self._ok is not False

    @property
    def reward(self) -> float | None:
        """The weighted sum of the rewards that have a value; None if none has."""
        valued = [
            reward.value * reward.weight for reward in self._rewards.values() if reward.value is not None
        ]
        return sum(valued) if valued else None

    # What an environment writes.

    def add_node(
        self,
        message: Message,
        token_ids: npt.ArrayLike = (),
        *,
        parent: int | None = None,
        sampled: bool = False,
        mask: npt.ArrayLike | None = None,
        is_content: npt.ArrayLike | None = None,
        logprobs: npt.ArrayLike | None = None,
        created_at: float | None = None,
        tools_json: str = "",
        routed_experts: npt.NDArray[Any] | None = None,
        sampling_mask: SamplingMask | None = None,
        top_logprobs: TopLogprobs | None = None,
        holes: Mapping[str, str] | None = None,
    ) -> int:
        """Add a node with `Node`'s fields after node `parent` (None: a new root) and return its index.

        A `sampled` node answers what was pending: it drops the preview. ValueError naming the field if a
        length, a dtype or `parent` does not fit; the trace is then unchanged.
        """
        node = Node(
            message,
            token_ids,
            parent=self._optional_index(parent, "parent"),
            sampled=sampled,
            mask=mask,
            is_content=is_content,
            logprobs=logprobs,
            created_at=created_at,
            tools_json=tools_json,
            routed_experts=routed_experts,
            sampling_mask=sampling_mask,
            top_logprobs=top_logprobs,
            holes=holes,
        )
        index = len(self._nodes)
        self._nodes.append(node)
        dropped = [PendingSet(None)] if sampled and self.pending is not None else ()
        self.pending = None if dropped else self.pending
        self._record(NodeAdded(index, node), *dropped)
        return index

    def add_call(self, call: Call) -> int:
        """Record a model call and return its index. ValueError if its node does not exist."""
        check_type(call, Call, "call")
        self._optional_index(call.node, "call's node")
        self._calls.append(call)
        self._record(CallAdded(len(self._calls) - 1, call))
        return len(self._calls) - 1

    def add_link(self, link: Link) -> int:
        """Record a link and return its index. ValueError if it names a node of this trace that is none."""
        check_type(link, Link, "link")
        self._node_index(link.source, "link's source")
        if link.target_trace_id in ("", self.id):
            self._node_index(link.target, "link's target")
        self._links.append(link)
        self._record(LinkAdded(len(self._links) - 1, link))
        return len(self._links) - 1

    def add_error(self, error: EpisodeError) -> int:
        """Record an error and return its index. Does not change `ok`: the environment may have recovered."""
        check_type(error, EpisodeError, "error")
        self._errors.append(error)
        self._record(ErrorAdded(len(self._errors) - 1, error))
        return len(self._errors) - 1

    def set_reward(self, name: str, value: float | None, weight: float = 1.0) -> None:
        """Set the reward `name`; value None says that there is none. ValueError on NaN and infinities."""
        check_text(name, "reward's name")
        reward = Reward(value, weight)
        if self._rewards.get(name) != reward:
            self._rewards[name] = reward
            self._record(RewardSet(name, reward))

    def set_metric(self, name: str, value: float) -> None:
        """Set the metric `name`. ValueError on NaN and infinities."""
        check_text(name, "metric's name")
        check_finite(value, f"metric {name!r}")
        if self._metrics.get(name) != value:
            self._metrics[name] = float(value)
            self._record(MetricSet(name, float(value)))

    def set_ok(self, ok: bool) -> None:
        """Say whether the trace went well."""
        if self._ok is not bool(ok):
            self._ok = bool(ok)
            self._record(OkSet(self._ok))

    def set_stop(self, condition: str) -> None:
        """Say why the trace stopped, in a word of the environment's (`"max_turns"`)."""
        check_text(condition, "stop condition")
        if self.stop_condition != condition:
            self.stop_condition = condition
            self._record(StopSet(condition))

    def set_tools(self, json: str) -> None:
        """Set the tools offered in this trace: the JSON text of an array. ValueError if it is not one."""
        if self.tools_json != json:
            decode_json(json, "tools", list)
            self.tools_json = json
            self._record(ToolsSet(json))

    def set_pending(self, messages: Sequence[Message], parent: int | None = None) -> None:
        """Preview what the model is being asked after node `parent`, instead of the last preview.

        No messages clear it.
        """
        parent = self._optional_index(parent, "parent")
        if not messages:
            return self.clear_pending()
        for message in messages:
            check_type(message, Message, "pending message")
        self.pending = Pending(tuple(messages), parent)
        self._record(PendingSet(self.pending))

    def clear_pending(self) -> None:
        """Drop the preview, where there is one."""
        if self.pending is not None:
            self.pending = None
            self._record(PendingSet(None))

    def finish(self) -> None:
        """Set `finished_at`, drop the preview, say `ok` where nobody did. A second call changes nothing."""
        if self.finished_at is not None:
            return
        self.clear_pending()
        self.set_ok(self.ok)
        now = time.time_ns()
        self.finished_at = now / 1e9
        self._record(Finished(now))

    # What rewrites history: the trace is sent anew. Rare.

    def remove_reward(self, name: str) -> None:
        """Remove the reward `name`. KeyError if there is none."""
        del self._rewards[name]
        self._rewrite(lambda change: isinstance(change, RewardSet) and change.name == name)

    def remove_metric(self, name: str) -> None:
        """Remove the metric `name`. KeyError if there is none."""
        del self._metrics[name]
        self._rewrite(lambda change: isinstance(change, MetricSet) and change.name == name)

    def rewrite_errors(self, errors: Iterable[EpisodeError]) -> None:
        """Replace the errors, for example to put those of earlier attempts in front."""
        replacement = list(errors)
        for error in replacement:
            check_type(error, EpisodeError, "error")
        self._errors[:] = replacement
        added = [ErrorAdded(index, error) for index, error in enumerate(replacement)]
        self._rewrite(lambda change: isinstance(change, ErrorAdded), added)

    # Announcing.

    def touch(self) -> None:
        """Announce the trace, unless it is announced already. Every method that streams does so by itself."""
        # After the change, never before: a reader clears `dirty` and then reads, so it misses nothing.
        if not self.dirty:
            self.dirty = True
            if self._on_touch is not None:
                self._on_touch(self)

    def discard(self) -> None:
        """Mark the trace as given up and announce that. Use `Episode.discard_trace`."""
        self.discarded = True
        self.touch()

    def _info_set(self, key: str, json_text: str) -> None:
        self._record(InfoSet(key, json_text))

    def _info_removed(self, keys: set[str]) -> None:
        self._rewrite(lambda change: isinstance(change, InfoSet) and change.key in keys)

    def _record(self, *changes: Change) -> None:
        self.journal.entries.extend(changes)  # one step: a reader has all of them or none
        self._announce()

    def _rewrite(self, gone: Callable[[Change], bool], added: Iterable[Change] = ()) -> None:
        entries = [change for change in self.journal.entries if not gone(change)]
        entries.extend(added)
        # One assignment: a reader has the old journal or the new one, whole.
        self.journal = Journal(self.journal.generation + 1, entries)
        self._announce()

    def _announce(self) -> None:
        if not self.discarded:
            self.touch()

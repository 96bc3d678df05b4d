"""Operations on an episode, always legal whatever they are applied to.

They choose traces and nodes by a number that is taken modulo what there is. Programs of them are made by
`tests.helpers.strategies`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from env_worker.domain import (
    Call,
    EpisodeError,
    JsonValue,
    Link,
    Message,
    SamplingMask,
    TopLogprobs,
    WeightVersionSpan,
)

if TYPE_CHECKING:
    from env_worker.domain import Episode, Trace


class Operation(Protocol):
    """One step of a program."""

    def apply(self, episode: Episode) -> None:
        """Do it."""


@dataclass(frozen=True)
class Flush:
    """A reader looks, with room for `budget_bytes`; `write_ends`: its write ends before the next look."""

    budget_bytes: int
    write_ends: bool

    def apply(self, episode: Episode) -> None:
        """Changes nothing: the reader is the test."""


@dataclass(frozen=True)
class NewTrace:
    """Opens a trace."""

    agent: str
    trainable: bool
    model: str

    def apply(self, episode: Episode) -> None:
        episode.new_trace(self.agent, trainable=self.trainable, model=self.model)


@dataclass(frozen=True)
class Retry:
    """Gives a trace up, as an attempt that failed, and opens the next attempt."""

    trace: int

    def apply(self, episode: Episode) -> None:
        given_up = _pick(episode, self.trace)
        episode.discard_trace(given_up)
        given_up.add_node(Message.user("a straggler"))  # has no effect
        episode.new_trace(given_up.agent, trainable=given_up.trainable, model=given_up.model)


@dataclass(frozen=True)
class FailEpisode:
    """Records an error of the episode."""

    error: EpisodeError

    def apply(self, episode: Episode) -> None:
        episode.add_error(self.error)


@dataclass(frozen=True)
class AddNode:
    """Adds a node with arrays that fit it, behind some node or as a root."""

    trace: int
    parent: int | None
    message: Message
    token_ids: tuple[int, ...]
    sampled: bool
    mask_seed: int
    with_content: bool
    with_arrays: bool
    tools_json: str

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        random = np.random.default_rng(self.mask_seed)
        count = len(self.token_ids)
        mask = random.random(count) < (0.5 if self.sampled else 0.0)
        trained = int(mask.sum())
        counts = random.integers(0, 3, trained, dtype=np.int32)
        ids = random.integers(0, 100, counts.sum(), dtype=np.int32)
        arrays = self.with_arrays
        trace.add_node(
            self.message,
            self.token_ids,
            parent=_node(trace, self.parent),
            sampled=self.sampled,
            mask=mask,
            is_content=random.random(count) < 0.5 if self.with_content else None,
            logprobs=-random.random(trained, dtype=np.float32),
            tools_json=self.tools_json,
            routed_experts=random.integers(0, 300, (count, 2, 2)) if arrays else None,
            sampling_mask=SamplingMask(ids, counts) if arrays else None,
            top_logprobs=TopLogprobs(ids, -random.random(len(ids), dtype=np.float32), counts)
            if arrays
            else None,
            holes=None if arrays else {"routed_experts": f"none was asked for, {count} tokens"},
        )
        if arrays and count:
            trace.repair_routing(len(trace.nodes) - 1, 0, np.full((1, 2, 2), 7))


@dataclass(frozen=True)
class AddCall:
    """Records a call, of some node or of none."""

    trace: int
    node: int | None
    model: str
    counts: tuple[int, int, int | None]
    error: EpisodeError | None
    attempt: int
    simulated: bool
    versions: tuple[WeightVersionSpan, ...]

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        prompt, completion, cached = self.counts
        trace.add_call(
            Call(
                node=_node(trace, self.node),
                model=self.model,
                endpoint="http://engine/v1",
                dialect="openai-chat",
                duration_seconds=1.25,
                prompt_tokens=prompt,
                completion_tokens=completion,
                cached_tokens=cached,
                finish_reason="" if self.error else "stop",
                error=self.error,
                attempt=self.attempt,
                simulated=self.simulated,
                weight_versions=self.versions,
            )
        )


@dataclass(frozen=True)
class AddLink:
    """Links two nodes of a trace, or a node to one of another trace."""

    trace: int
    source: int
    target: int
    kind: str
    other_trace: str

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        source, target = _node(trace, self.source), _node(trace, self.target)
        if source is not None and target is not None:
            trace.add_link(Link(source, target, self.kind, self.other_trace))


@dataclass(frozen=True)
class Preview:
    """Shows what is being asked; without messages the preview is dropped."""

    trace: int
    messages: tuple[Message, ...]
    parent: int | None

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        trace.set_pending(self.messages, _node(trace, self.parent))


@dataclass(frozen=True)
class Set:
    """Sets a reward, a metric or an info entry, or removes it if `value` is None and it is there."""

    trace: int
    what: str
    name: str
    value: JsonValue
    weight: float

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        match self.what:
            case "reward" if self.value is None and self.name in trace.rewards and self.weight < 0:
                trace.remove_reward(self.name)
            case "reward":
                trace.set_reward(self.name, self.value, self.weight)
            case "metric" if self.value is not None:
                trace.set_metric(self.name, self.value)
            case "metric" if self.name in trace.metrics:
                trace.remove_metric(self.name)
            case "info" if self.value is None and self.name in trace.info:
                del trace.info[self.name]
            case "info":
                trace.info[self.name] = self.value


@dataclass(frozen=True)
class Report:
    """Records errors of a trace, or puts them in front of those that are there."""

    trace: int
    errors: tuple[EpisodeError, ...]
    rewrite: bool

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        if self.rewrite:
            trace.rewrite_errors([*self.errors, *trace.errors])
        else:
            for error in self.errors:
                trace.add_error(error)


@dataclass(frozen=True)
class Conclude:
    """Sets one of the scalars of a trace."""

    trace: int
    what: str
    text: str
    ok: bool

    def apply(self, episode: Episode) -> None:
        trace = _pick(episode, self.trace)
        match self.what:
            case "ok":
                trace.set_ok(self.ok)
            case "stop":
                trace.set_stop(self.text)
            case "tools":
                trace.set_tools(json.dumps([self.text]))
            case "finish":
                trace.finish()


def _pick(episode: Episode, number: int) -> Trace:
    return episode.traces[number % len(episode.traces)]


def _node(trace: Trace, number: int | None) -> int | None:
    return number % len(trace.nodes) if number is not None and trace.nodes else None

"""Traces, nodes and records shaped as those of the verifiers package, of both versions that we know."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Said:
    """A message of any role, a content part, a tool call or a tool: what is not given it has not."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if value is not None}


def user(text: str) -> Said:
    return Said(role="user", content=text)


def assistant(text: str | None, **fields: Any) -> Said:
    return Said(role="assistant", content=text, tool_calls=None, **fields)


@dataclass
class FakeNode:
    """As in 0.4.0: no heads and no weight versions."""

    message: Said
    parent: int | None = None
    sampled: bool = False
    token_ids: Any = ()
    mask: Any = ()
    is_content: Any = ()
    logprobs: Any = ()
    routed_experts: Any = None
    sampling_mask: Any = None
    tools: Sequence[Any] = ()
    semantic_parents: list[Any] = field(default_factory=list)
    timestamp: float = field(default_factory=time.time)


def sampled_node(parent: int | None, tokens: int = 3, prompt: int = 1, **fields: Any) -> FakeNode:
    """An answer of so many tokens, before which the prompt has some more."""
    mask = np.array([False] * prompt + [True] * tokens)
    return FakeNode(
        assistant("answer"),
        parent,
        sampled=True,
        token_ids=np.arange(prompt + tokens, dtype=np.int32),
        mask=mask,
        logprobs=np.full(tokens, -0.5, np.float32),
        **fields,
    )


def span(start: float = 1000.0, end: float = 1002.0) -> SimpleNamespace:
    return SimpleNamespace(start=start, end=end, duration=max(0.0, end - start))


def error(message: str, kind: str = "ProviderError", status: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(type=kind, message=message, status_code=status, traceback=None)


def call(node: int | None = None, failure: Any = None) -> SimpleNamespace:
    usage = None
    if failure is None:
        usage = SimpleNamespace(input_tokens=12, completion_tokens=5, cached_input_tokens=2)
    return SimpleNamespace(
        node=node, model="m", endpoint="/chat/completions", finish_reason="stop", usage=usage,
        time=span(), error=failure,
    )  # fmt: skip


def reward(score: float, weight: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(score=score, weight=weight)


@dataclass
class FakeTrace:
    """What `EpisodeMirror` looks at."""

    id: str = "a" * 32
    nodes: list[FakeNode] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    rewards: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    tools: list[Any] = field(default_factory=list)
    pending: list[Said] = field(default_factory=list)
    stop_condition: str | None = None
    ok: bool = False
    is_completed: bool = False
    watcher: Callable[[FakeTrace], None] | None = None
    more: dict[str, Any] = field(default_factory=dict)
    name: str = "agent"
    trainable: bool = True
    client: Any = field(
        default_factory=lambda: SimpleNamespace(type="eval", base_url="http://engine:8000/v1")
    )

    def __post_init__(self) -> None:
        self.verifiers = SimpleNamespace(version="0.4.1")
        self.task = SimpleNamespace(type="Task", key="k", data=SimpleNamespace(idx=3))
        self.timing = SimpleNamespace(start=1000.0)
        self.agent = SimpleNamespace(
            name=self.name,
            trainable=self.trainable,
            config=SimpleNamespace(client=self.client, model="m", harness=SimpleNamespace(id="null")),
        )

    def watch(self, watcher: Callable[[FakeTrace], None] | None) -> None:
        self.watcher = watcher

    def notify(self) -> None:
        if self.watcher is not None:
            self.watcher(self)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self.more

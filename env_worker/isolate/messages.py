"""What a worker and an environment's process say to each other, each as one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import (
        Change,
        EpisodeError,
        RoutedExperts,
        SamplingMask,
        SamplingParams,
        TopLogprobs,
    )
    from env_worker.model.base import ModelClient

# From the worker.


@dataclass(frozen=True, slots=True)
class Job:
    """The run to play; the first message.

    `deadline` is in seconds of `time.monotonic()`, which all processes of a host share. `model` is pickled: a
    client that holds connections says by `__reduce__` how it is made.
    """

    episode_id: str
    request_id: str
    environment_name: str
    task: Mapping[str, Any]
    sampling: SamplingParams
    model: ModelClient
    deadline: float | None
    owner: str
    group_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the run: its environment gets CancelledError."""


# From the environment's process.


@dataclass(frozen=True, slots=True)
class Began:
    """The job has come; the first message. Without it nothing of the run has happened."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A trace was opened."""

    trace_id: str
    agent: str
    trainable: bool
    model: str
    started_at: float


@dataclass(frozen=True, slots=True)
class NodeAgain:
    """Stands for the NodeAdded of a node that was sent before, in a journal that begins anew."""

    index: int


@dataclass(frozen=True, slots=True)
class Grew:
    """What a trace's journal holds since it was last sent, nodes without their training arrays. Of another
    generation than before: the journal from its beginning."""

    trace_id: str
    generation: int
    changes: tuple[Change | NodeAgain, ...]


@dataclass(frozen=True, slots=True)
class Discarded:
    """A trace was given up."""

    trace_id: str


@dataclass(frozen=True, slots=True)
class HeadSet:
    """What the episode says of itself has changed."""

    ok: bool
    errors: tuple[EpisodeError, ...]
    owner: str
    group_id: str


@dataclass(frozen=True, slots=True)
class NodeArrays:
    """A node's training arrays, and why some are not there, once its run has ended."""

    trace_id: str
    node: int
    routed_experts: RoutedExperts | None
    sampling_mask: SamplingMask | None
    top_logprobs: TopLogprobs | None
    holes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TraceSet:
    """A trace's attributes that no journal holds, once its run has ended."""

    trace_id: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended, with what its environment raised; the last message."""

    error: EpisodeError | None
    invalid_task: bool
    finished_at: float | None

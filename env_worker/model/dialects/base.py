"""What a dialect makes of a turn: requests to the engine, and one answer out of its responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import (
        Float32Array,
        Int32Array,
        Message,
        RoutedExperts,
        SamplingMask,
        SamplingParams,
        TopLogprobs,
        WeightVersionSpan,
    )

TOKEN_IDS, LOGPROBS, WEIGHT_VERSIONS = "token_ids", "logprobs", "weight_versions"
"""Names of what may be missing in an answer, beside those of the training arrays."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the worker's operator says of an engine, since its responses do not.

    `arrays` are the training arrays that are asked for (of `TRAINING_ARRAY_FIELDS`): without them a turn is
    marked incomplete. `routing_shape` is `(layers, top_k)`, for engines that send rows without a shape.
    `experts` is how many a layer has; None: not checked. `logprobs_mode` is what the engine's
    log-probabilities are of ("raw" before temperature and filters, "processed" after them; "": not told); it
    goes to `trace.info["engine"]`.
    """

    arrays: frozenset[str] = frozenset()
    routing_shape: tuple[int, int] | None = None
    experts: int | None = None
    logprobs_mode: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One turn's request, before a dialect puts it into words.

    `messages` are the whole conversation. `known` is int32 `[tokens]`: what the model has seen on the branch
    that goes on, up to its last node; empty at a root. Of the routing, rows from position `rows_from` on are
    wanted: the last known token's, which was a placeholder, and those of all that follow; or all of them
    unless the history is `steady`: an engine was seen to continue it, and not to have rewritten it, as by a
    template that leaves out reasoning. `conversation` is an id that stays the same for all turns of a trace.
    """

    model: str
    messages: Sequence[Message]
    sampling: SamplingParams
    tools: Sequence[Mapping[str, Any]]
    known: Int32Array
    conversation: str
    steady: bool = True

    @property
    def rows_from(self) -> int:
        return max(len(self.known) - 1, 0) if self.steady else 0


class RoutingRows(NamedTuple):
    """Expert ids of positions from `start` on, of prompt and sampled tokens as one sequence: `rows`
    `[tokens - 1 - start, layers, top_k]`, as the last sampled token has none yet."""

    start: int
    rows: RoutedExperts


@dataclass(slots=True)
class Answer:
    """What an engine answered, checked; what it lacks is None, and has its reason in `holes`.

    `prompt_ids` int32 `[prompt tokens]` is the whole prompt, `sampled_ids` int32 `[n]`, both or neither;
    without them there is nothing else per token. `logprobs` float32 `[n]`; `top_logprobs` and `sampling_mask`
    have `n` counts. `holes` has, for each field of `TRAINING_ARRAY_FIELDS`, `TOKEN_IDS`, `LOGPROBS` or
    `WEIGHT_VERSIONS` that was asked for and is absent, why. Counts are the engine's own, or 0.
    """

    message: Message
    finish_reason: str = ""
    model: str = ""
    prompt_ids: Int32Array | None = None
    sampled_ids: Int32Array | None = None
    logprobs: Float32Array | None = None
    top_logprobs: TopLogprobs | None = None
    sampling_mask: SamplingMask | None = None
    routing: RoutingRows | None = None
    weight_versions: tuple[WeightVersionSpan, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    holes: dict[str, str] = field(default_factory=dict)


class Post(Protocol):
    """Posts a JSON body to a path of the engine and returns the response's JSON object.

    `path` beginning with "/" is of the server's root (`/inference/v1/generate`), else it goes behind the base
    URL (`chat/completions`). Tries again where that is safe; each try that failed is recorded. Raises
    `EngineError`.
    """

    async def __call__(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]: ...


class Dialect(Protocol):
    """How one API is spoken. Without state: one instance serves all runs."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> str:
        """Path of the request that samples, for the Call (`/chat/completions`)."""
        ...

    async def ask(self, question: Question, options: EngineOptions, post: Post) -> Answer:
        """Ask, and make the answer of what comes back. `EngineError` where it cannot ask
        (`InexpressibleError`), and where there is no message in what comes (`MalformedAnswerError`); all else
        that is wrong with it is a hole."""
        ...

"""The small immutable records of a trace: model calls, errors, links, rewards, and the pending preview."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from env_worker.domain.errors import RemoteError
from env_worker.domain.text import check_text, clean_text

if TYPE_CHECKING:
    from env_worker.domain.messages import Message

MIN_UNIX_SECONDS: Final = 0
MAX_UNIX_SECONDS: Final = 9_000_000_000
"""The year 2255: nanoseconds since the epoch must fit into 64 bits."""
MAX_DURATION_SECONDS: Final = 315_576_000_000
"""Ten thousand years: what protobuf's Duration can hold."""
MAX_ERROR_TEXT: Final = 16_384
"""Characters of an error's message, and of its traceback, that are kept; of a traceback the end."""


def check_finite(value: object, what: str) -> None:
    """TypeError if `value` is not a real number, ValueError if it is NaN or infinite."""
    try:
        finite = math.isfinite(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{what} is of type {type(value).__name__}, expected a number") from error
    except OverflowError:  # an integer beyond what a double holds
        finite = False
    if not finite:
        raise ValueError(
            f"{what} is {value}, expected a finite number; record an error where there is no value"
        )


def check_time(value: object, what: str) -> None:
    """As `check_finite`, for unix seconds that the wire can hold: from 1970 to 2255."""
    check_finite(value, what)
    if not MIN_UNIX_SECONDS <= value < MAX_UNIX_SECONDS:  # type: ignore[operator]
        raise ValueError(
            f"{what} is {value}, expected unix seconds from {MIN_UNIX_SECONDS} to {MAX_UNIX_SECONDS}; pass "
            "time.time(), not milliseconds or nanoseconds"
        )


def check_type(value: object, expected: type, what: str) -> None:
    """TypeError if `value` is not of type `expected`: said where it is written, not where it is streamed."""
    if not isinstance(value, expected):
        raise TypeError(
            f"{what} is of type {type(value).__name__}, expected {expected.__name__}; construct one"
        )


PHASES: Final = ("model", "tool", "environment")
"""Where an episode may fail: so that a failure of the engine is never taken for one of the environment."""


@dataclass(frozen=True, slots=True)
class EpisodeError:
    """What went wrong, as data: an episode that failed is still finished, kept and replied.

    `type` is the exception's class name, `phase` a word of the environment for where it happened,
    `occurred_at` unix seconds. Texts that UTF-8 cannot carry are mended and long ones cut, never refused.
    """

    type: str
    message: str
    phase: str = ""
    traceback: str = ""
    occurred_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "type", clean_text(str(self.type)))
        set_field(self, "message", _shortened(clean_text(str(self.message))))
        set_field(self, "phase", clean_text(str(self.phase)))
        set_field(self, "traceback", clean_text(str(self.traceback))[-MAX_ERROR_TEXT:])
        check_time(self.occurred_at, "error's occurred_at")

    @classmethod
    def from_exception(cls, error: BaseException, phase: str = "") -> EpisodeError:
        """The record of `error`, with its traceback; works for exceptions whose own `__str__` raises.

        `phase` is where it happened, unless the exception's class says that: by an attribute `phase` that is
        one of `PHASES`.
        """
        if isinstance(error, RemoteError):
            return error.record
        declared = getattr(type(error), "phase", None)
        if isinstance(declared, str) and declared in PHASES:
            phase = declared
        try:
            message = str(error)
            trace = "".join(traceback.format_exception(error))
        except Exception as failure:
            message, trace = f"(no message: its __str__ raised {type(failure).__name__})", ""
        return cls(type(error).__qualname__, message, phase, trace)


@dataclass(frozen=True, slots=True)
class WeightVersionSpan:
    """Sampled tokens `start` to `end` (exclusive) of a call came from weights labelled `version`."""

    version: str
    start: int
    end: int

    def __post_init__(self) -> None:
        check_text(self.version, "weight version")
        if not 0 <= self.start <= self.end:
            raise ValueError(f"weight version span is {self.start}..{self.end}, expected 0 <= start <= end")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the model: committed when `node` names its assistant node, failed when `error` is set.

    `started_at` unix seconds, `attempt` from 1, `cached_tokens` None where the engine does not say. Only the
    built-in simulated model sets `simulated`. ValueError on negative counts or durations.
    """

    node: int | None = None
    model: str = ""
    endpoint: str = ""
    dialect: str = ""
    started_at: float = field(default_factory=time.time)
    duration_seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str = ""
    error: EpisodeError | None = None
    attempt: int = 1
    simulated: bool = False
    weight_versions: tuple[WeightVersionSpan, ...] = ()

    def __post_init__(self) -> None:
        if type(self.weight_versions) is not tuple:
            object.__setattr__(self, "weight_versions", tuple(self.weight_versions))
        check_text(self.model, "call's model")
        check_text(self.endpoint, "call's endpoint")
        check_text(self.dialect, "call's dialect")
        check_text(self.finish_reason, "call's finish_reason")
        check_time(self.started_at, "call's started_at")
        check_finite(self.duration_seconds, "call's duration_seconds")
        if not 0 <= self.duration_seconds < MAX_DURATION_SECONDS:
            raise ValueError(
                f"call's duration_seconds is {self.duration_seconds}, expected 0 to "
                f"{MAX_DURATION_SECONDS}; pass seconds"
            )
        for name, value in (
            ("prompt_tokens", self.prompt_tokens),
            ("completion_tokens", self.completion_tokens),
            ("cached_tokens", self.cached_tokens),
        ):
            if value is not None and value < 0:
                raise ValueError(f"call's {name} is {value}, expected 0 or more")
        if self.attempt < 1:
            raise ValueError(f"call's attempt is {self.attempt}, expected 1 for the first attempt")


@dataclass(frozen=True, slots=True)
class Link:
    """A relation of a meaning `kind` from node `source` of its trace to node `target`.

    `target` is a node of the trace `target_trace_id`, or of the same trace where that is "".
    """

    source: int
    target: int
    kind: str
    target_trace_id: str = ""

    def __post_init__(self) -> None:
        check_text(self.kind, "link's kind")
        check_text(self.target_trace_id, "link's target_trace_id")
        if self.source < 0 or self.target < 0:
            raise ValueError(
                f"link goes from node {self.source} to node {self.target}, expected 0 or more for both"
            )


@dataclass(frozen=True, slots=True)
class Reward:
    """A named reward's value and weight. `value` None means that there is none (yet): it is not a zero.

    ValueError on NaN and infinities, in either or in their product.
    """

    value: float | None
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self.weight, "reward's weight")
        object.__setattr__(self, "weight", float(self.weight))
        if self.value is not None:
            check_finite(self.value, "reward's value")
            object.__setattr__(self, "value", float(self.value))
            if not math.isfinite(float(self.value) * self.weight):
                raise ValueError(
                    f"reward of value {self.value} and weight {self.weight} is beyond what a double holds; "
                    "make them smaller"
                )


@dataclass(frozen=True, slots=True)
class Pending:
    """What the model is being asked right now, after node `parent` (None: at the root): messages no node
    holds yet.
    """

    messages: tuple[Message, ...]
    parent: int | None = None


def _shortened(text: str) -> str:
    if len(text) <= MAX_ERROR_TEXT:
        return text
    return f"{text[:MAX_ERROR_TEXT]}... ({len(text) - MAX_ERROR_TEXT} characters more)"

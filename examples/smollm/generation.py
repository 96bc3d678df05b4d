"""One answer: from a prompt's tokens to sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from examples.smollm.model import BATCH
from examples.smollm.sampling import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from examples.smollm.model import Model
    from examples.smollm.sampling import Draw, Sampling


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be generated: at most `most` tokens behind `prompt`, until one of `stop_ids`, a token that
    ends an answer, or one of the texts `stops`."""

    prompt: tuple[int, ...]
    most: int
    sampling: Sampling
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Generated:
    """What was. `finish_reason` is "stop" or "length"; `stop_reason` the text or id of the request that ended
    it. `known` counts the prompt's tokens that were in the cache."""

    wanted: Wanted
    draws: tuple[Draw, ...]
    finish_reason: str
    stop_reason: str | int | None
    known: int

    @property
    def ids(self) -> list[int]:
        """The sampled tokens."""
        return [draw.token for draw in self.draws]


class AbandonedError(Exception):
    """Nobody waits for the answer any more."""


def generate(model: Model, wanted: Wanted, abandoned: Callable[[], bool]) -> Generated:
    """Generate. `abandoned` is asked before each evaluation: AbandonedError once it is True."""
    sampler = Sampler(wanted.sampling)
    known = model.rewind(wanted.prompt)
    due: tuple[int, ...] = wanted.prompt[known:]
    draws: list[Draw] = []
    text = bytearray()
    while True:
        for start in range(0, len(due), BATCH):
            if abandoned():
                raise AbandonedError
            model.feed(due[start : start + BATCH])
        draw = sampler.draw(model.logits())
        draws.append(draw)
        text += model.vocabulary[draw.token]
        finish_reason, stop_reason = _end(model, wanted, draw.token, text, len(draws))
        if finish_reason:
            return Generated(wanted, tuple(draws), finish_reason, stop_reason, known)
        due = (draw.token,)


def text_of(model: Model, ids: Iterable[int], stop_reason: str | int | None = None) -> str:
    """The text of sampled tokens, up to the stop text that ended it. Half a character at the end becomes
    U+FFFD."""
    text = b"".join(model.vocabulary[index] for index in ids).decode("utf-8", "replace")
    return text.partition(stop_reason)[0] if isinstance(stop_reason, str) else text


def _end(
    model: Model, wanted: Wanted, token: int, text: bytearray, tokens: int
) -> tuple[str, str | int | None]:
    """Whether that is the end, as finish and stop reason. The last of `tokens` tokens is `token`."""
    if token in model.ends:
        return "stop", None
    if token in wanted.stop_ids:
        return "stop", token
    new = len(model.vocabulary[token])
    places = [
        (text.find(stop.encode(), max(len(text) - new - len(stop.encode()) + 1, 0)), stop)
        for stop in wanted.stops
    ]
    if found := [(place, stop) for place, stop in places if place >= 0]:
        return "stop", min(found)[1]  # the first one in the text
    return ("length", None) if tokens >= wanted.most else ("", None)

"""What the scripted model says: one reply for each request, chosen by a policy of the test."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.engine.quirks import Quirk
from tests.engine.tokens import IM_END, VOCABULARY, Ids, answer_text, decode, encode, join
from tests.engine.wanted import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True)
class Reply:
    """One answer of the model.

    `calls` are names and arguments, the arguments as text, which need not be JSON. `ids` are sampled instead
    of the text, just as they are; `ends`: the text is followed by the token that ends an answer.
    `finish_reason` overrides what follows from the answer. `versions` are the weights' labels in turn, in
    equal parts; None: those of the engine. `cached_tokens` of the prompt, None: not told. `edit` gets the
    response's JSON object last, and returns what is sent.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    ids: tuple[int, ...] | None = None
    ends: bool = True
    finish_reason: str = ""
    versions: tuple[str, ...] | None = None
    cached_tokens: int | None = None
    quirks: frozenset[Quirk] = frozenset()
    edit: Callable[[dict[str, Any]], Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quirks", frozenset(map(Quirk, self.quirks)))
        if self.ids is not None and not all(0 <= index < VOCABULARY for index in self.ids):
            raise ValueError(f"a reply's ids are 0 to {VOCABULARY - 1}, not {self.ids[:10]}")

    @classmethod
    def long(cls, tokens: int, quirks: Iterable[Quirk] = ()) -> Reply:
        """A text of so many tokens, its end included."""
        words = "the quick brown fox jumps over the lazy dog "
        return cls((words * (tokens // len(words) + 1))[: tokens - 1], quirks=frozenset(quirks))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reply:
        """The reply that a control request describes: the fields, and `tokens` for a long text. TypeError for
        a key that is none."""
        fields = dict(value)
        reply = cls.long(tokens) if (tokens := fields.pop("tokens", 0)) else cls()
        for name in ("calls", "ids", "versions"):
            if fields.get(name) is not None:
                fields[name] = tuple(tuple(item) if name == "calls" else item for item in fields[name])
        return replace(reply, **fields)

    def sampled(self) -> Ids:
        """The ids that the model samples for it, if nothing cuts it off."""
        if self.ids is not None:
            return join(self.ids)
        return join(encode(answer_text(self.reasoning, self.text, self.calls)), [IM_END] if self.ends else [])


@dataclass(frozen=True)
class Asked:
    """A request, as a policy sees it: `body` is its JSON, `number` counts answers of this engine from 0."""

    path: str
    body: Mapping[str, Any]
    prompt_ids: Ids
    number: int

    @property
    def prompt(self) -> str:
        """The whole prompt as text, with the special tokens."""
        return decode(self.prompt_ids, specials=True)

    @property
    def turn(self) -> int:
        """How many answers of the model the prompt holds."""
        return max(self.prompt.count("<|im_start|>assistant\n") - 1, 0)

    @property
    def last(self) -> str:
        """The text of the last message."""
        return self.prompt.rpartition("<|im_end|>")[0].rpartition("<|im_start|>")[2].partition("\n")[2]


Policy: TypeAlias = "Callable[[Asked], str | Reply]"


def echo(asked: Asked) -> Reply:
    """Says again what the last message says, up to 200 characters."""
    return Reply(f"turn {asked.turn}: {asked.last[:200]}")


def by_turn(*replies: str | Reply) -> Policy:
    """The first reply to prompts without an answer, the second to those with one, and so on; the last for all
    that follow. Without state, so that any number of conversations may go on at once."""
    return lambda asked: replies[min(asked.turn, len(replies) - 1)]


class Script:
    """Replies in the order of the requests, each once; what comes after the last is refused."""

    def __init__(self, replies: Iterable[str | Reply]) -> None:
        self.remaining = deque(replies)
        self._length = len(self.remaining)

    def __call__(self, asked: Asked) -> str | Reply:
        if not self.remaining:
            raise RefusedError(
                f"request {asked.number} came, the script has {self._length} replies; add one, or use by_turn"
            )
        return self.remaining.popleft()

"""How much of a response may become a message, or go back to the engine.

A message is written as JSON again, and read: each in one call, in which no thread runs but its own. So it is
counted before, in steps. At these limits such a call takes a third of a second at most. What goes back is
written in pieces (`json_writing`), and copied in one call on its way to the socket.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain.text import check_text
from env_worker.model.errors import MalformedAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_TURN_BYTES: Final = (64 << 20) - (64 << 10)
"""Text of a message, and a turn's tokens with it: a node crosses the wire in one message of 64 MiB, of which
the rest frames it."""
MAX_MESSAGE_VALUES: Final = 1 << 18
"""Keys, texts, numbers, lists and objects in a message; a number beyond 64 bits counts as several."""
MAX_BESIDE_BYTES: Final = 32 << 20
"""Text in a message beside its content, reasoning and the texts of its tool calls: keys that are not known,
content parts that are no text, arguments that are no text. Engines put images and sound there."""
MAX_SENT_VALUES: Final = 1 << 20
"""Values of a response that go back to the engine: the ids of a prompt, of what was sampled, and all else."""
MAX_SENT_BYTES: Final = 200 << 20
"""Text in what goes back: images of a prompt that vLLM has rendered, as it wants them. One of a megapixel has
32 MiB."""

_MOST_SENT_DEPTH: Final = 100
"""Lists and objects in each other: far deeper than schemas of answers are."""
_TEXTS: Final = ("content", "reasoning", "reasoning_content", "tool_call_id", "name")
"""Keys of a message whose text is taken as it is."""
_SHORTER: Final = "lower max_tokens, or check the engine's URL and dialect"
_FOREIGN: Final = "check the engine's URL and version, and what stands before it"


def text_bytes(text: str) -> int:
    """Bytes of `text` as UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def check_message(message: Mapping[str, Any]) -> None:
    """MalformedAnswerError if an OpenAI chat message has more than may become one."""
    what = "message of the engine's response"
    _Count(what, MAX_MESSAGE_VALUES, MAX_TURN_BYTES, _SHORTER).add(message)
    beside = _Count(f"{what}, beside its content,", MAX_MESSAGE_VALUES, MAX_BESIDE_BYTES, _SHORTER)
    for value in _beside(message):
        beside.add(value)


def check_sent(value: object, what: str, too_much_text: str = _FOREIGN) -> None:
    """MalformedAnswerError if `value`, which the engine sent, cannot go back to it: it is too large, nests
    too deeply, or holds NaN or half a character. `too_much_text` says what to do then."""
    try:
        _Sent(what, MAX_SENT_VALUES, MAX_SENT_BYTES, _FOREIGN, too_much_text).add(value)
    except ValueError as error:
        raise MalformedAnswerError(f"{error}; it came from the engine, and goes back to it") from None


def check_sent_ids(ids: list[Any], what: str) -> None:
    """MalformedAnswerError if so many token ids cannot go back to the engine."""
    if len(ids) > MAX_SENT_VALUES:
        raise MalformedAnswerError(
            f"{what} has {len(ids)} token ids, the limit is {MAX_SENT_VALUES} of what goes back to the "
            "engine; ask for fewer tokens, or set the engine's dialect to vllm-chat"
        )


class _Count:
    """Counts what values have, however they are nested, and raises MalformedAnswerError beyond a limit."""

    most_depth: int | None = None

    def __init__(
        self, what: str, most_values: int, most_bytes: int, advice: str, too_much_text: str = ""
    ) -> None:
        self._what: Final = what
        self._most_values: Final = most_values
        self._most_bytes: Final = most_bytes
        self._advice: Final = advice
        self._too_much_text: Final = too_much_text or advice
        self._values = 0
        self._bytes = 0

    def add(self, value: object) -> None:
        level, depth = [value], 0
        while level:
            depth += 1
            if self.most_depth is not None and depth > self.most_depth:
                raise self._beyond(
                    f"lists and objects in each other {depth} deep", self.most_depth, self._advice
                )
            below: list[Any] = []
            for item in level:
                if isinstance(item, str):
                    fits = self._bytes + len(item) <= self._most_bytes  # what does not is not encoded
                    self._more(0, self._text_bytes(item) if fits else len(item))
                elif isinstance(item, dict):
                    self._more(2 * len(item), 0)
                    below += item
                    below += item.values()
                elif isinstance(item, list):
                    self._more(len(item), 0)
                    below += item
                elif isinstance(item, int):  # to write a long one takes the square of its length
                    self._more((item.bit_length() >> 6) << 2, 0)
                elif isinstance(item, float):
                    self._float(item)
            level = below

    def _more(self, values: int, size: int) -> None:
        self._values += values
        self._bytes += size
        if self._values > self._most_values:
            raise self._beyond(f"{self._values} values or more", self._most_values, self._advice)
        if self._bytes > self._most_bytes:
            raise self._beyond(f"{self._bytes} bytes of text or more", self._most_bytes, self._too_much_text)

    def _beyond(self, found: str, limit: int, advice: str) -> MalformedAnswerError:
        return MalformedAnswerError(f"{self._what} has {found}, the limit is {limit}; {advice}")

    def _text_bytes(self, text: str) -> int:
        return text_bytes(text)

    def _float(self, value: float) -> None:
        """Any may become a message."""


class _Sent(_Count):
    """ValueError also at what no JSON in UTF-8 has: it is not written for that, since it may be large."""

    most_depth = _MOST_SENT_DEPTH

    def _text_bytes(self, text: str) -> int:
        check_text(text, self._what)
        return text_bytes(text)

    def _float(self, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"{self._what} is not JSON: it holds {value}")


def _beside(message: Mapping[str, Any]) -> Iterator[object]:
    """What in it is written as JSON again."""
    for key, value in message.items():
        if key in _TEXTS and isinstance(value, str):
            continue
        if key == "content" and isinstance(value, list):
            yield from (part for part in value if not _is_text(part))
        elif key == "tool_calls" and isinstance(value, list):
            for call in value:
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict) and not isinstance(function.get("arguments"), str):
                    yield function.get("arguments")
        else:
            yield from (key, value)


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.keys() == {"type", "text"} and isinstance(part["text"], str)

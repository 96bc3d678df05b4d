"""The tokenizer and the chat template of the scripted model, so that tests know each id.

Ids 0 to 255 are bytes; then come the special tokens, and a token for each pair of small letters, which only a
template that retokenizes makes use of.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Ids: TypeAlias = NDArray[np.int32]

IM_START: Final = 256
IM_END: Final = 257
IMAGE: Final = 258
IMAGE_TOKENS: Final = 4
_PAIRS: Final = 260
VOCABULARY: Final = _PAIRS + 26 * 26

_SPECIALS: Final = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|image|>": IMAGE}
TOKEN_BYTES: Final[tuple[bytes, ...]] = (
    *(bytes([byte]) for byte in range(256)),
    *(text.encode() for text in _SPECIALS),
    b"<|unused|>",
    *(bytes([97 + first, 97 + second]) for first in range(26) for second in range(26)),
)
"""What each id stands for."""
TOKEN_TEXTS: Final = tuple(token.decode("utf-8", "replace") for token in TOKEN_BYTES)
"""As an engine decodes a single token: 128 of them are the same replacement character."""
_SILENT: Final = tuple(
    b"" if IM_START <= index < _PAIRS else token for index, token in enumerate(TOKEN_BYTES)
)
_THINK, _END_THINK = "<think>", "</think>"
_CALL, _END_CALL = '<tool_call>{"name": ', "}</tool_call>"
_CALLS: Final = re.compile(
    re.escape(_CALL) + r'("(?:[^"\\]|\\.)*"), "arguments": (.*?)' + re.escape(_END_CALL), re.DOTALL
)


class ParsedText(NamedTuple):
    """What the parsers make of a text; `calls` are names and arguments, the latter as they were written."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]


def encode(text: str, *, specials: bool = False) -> Ids:
    """Ids of a text, byte for byte; `specials`: the special tokens' texts become those tokens."""
    if specials and "<|" in text:
        pieces = re.split("(" + "|".join(map(re.escape, _SPECIALS)) + ")", text)
        return join(*(encode(piece) if piece not in _SPECIALS else [_SPECIALS[piece]] for piece in pieces))
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32)


def encode_merged(text: str) -> Ids:
    """Other ids of the same text: each pair of small letters is one token."""
    raw = text.encode("utf-8", "surrogatepass")
    pieces = re.findall(rb"[a-z]{2}|.", raw, re.DOTALL)
    pair = {token: index for index, token in enumerate(TOKEN_BYTES) if index >= _PAIRS}
    return np.array([pair.get(piece, piece[0]) for piece in pieces], np.int32)


def decode(ids: Ids, *, specials: bool = False) -> str:
    """Text of ids; what is no whole UTF-8 becomes U+FFFD. `specials`: with the special tokens' texts."""
    table = TOKEN_BYTES if specials else _SILENT
    return b"".join(map(table.__getitem__, ids.tolist())).decode("utf-8", "replace")


def join(*pieces: Ids | Sequence[int]) -> Ids:
    """The pieces, one behind the other."""
    return np.concatenate([np.asarray(piece, np.int32) for piece in pieces] or [np.empty(0, np.int32)])


def answer_text(reasoning: str, content: str, calls: Sequence[tuple[str, str]]) -> str:
    """What a model writes for such an answer; `parse_text` reads it back."""
    thought = f"{_THINK}{reasoning}{_END_THINK}" if reasoning else ""
    written = (f'{_CALL}{json.dumps(name)}, "arguments": {arguments}{_END_CALL}' for name, arguments in calls)
    return thought + content + "".join(written)


def parse_text(text: str, *, tools: bool = True) -> ParsedText:
    """Reasoning, content and, with `tools`, tool calls of a text. Calls that do not reach to its
    end, or are cut, are content; reasoning without an end has no content behind it."""
    reasoning = ""
    if text.startswith(_THINK):
        reasoning, _, text = text[len(_THINK) :].partition(_END_THINK)
    if not tools or (start := text.find(_CALL)) < 0:
        return ParsedText(reasoning, text, ())
    found, end = [], start
    while (match := _CALLS.match(text, end)) is not None:
        found.append((str(json.loads(match[1])), match[2]))
        end = match.end()
    if end < len(text):
        return ParsedText(reasoning, text, ())
    return ParsedText(reasoning, text[:start], tuple(found))


def expected_ids(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    retokenize: bool = False,
) -> Ids:
    """Ids of the prompt that the template makes of OpenAI messages: int32 `[tokens]`.

    `<|im_start|>role\\ncontent<|im_end|>\\n` for each, tools listed in a system part, and at the end the
    start of the answer. An answer is rendered to what was sampled for it, unless `retokenize`: then without
    its reasoning and outer white space, and to merged tokens.
    """
    pieces: list[Ids | Sequence[int]] = []
    if tools:
        listed = "\n".join(json.dumps(tool) for tool in tools)
        pieces.append(_part("system", encode(f"# Tools\n{listed}")))
    for message in messages:
        role = str(message.get("role"))
        body = _content(message.get("content"))
        if role == "assistant":
            body = _answer(message, body, retokenize)
        pieces.append(_part(role, body))
    return join(*pieces, [IM_START], encode("assistant\n"))


def _answer(message: Mapping[str, Any], content: Ids, retokenize: bool) -> Ids:
    calls = []
    for call in message.get("tool_calls") or ():
        arguments = call["function"].get("arguments") or ""
        calls.append(
            (call["function"]["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
        )
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if retokenize:
        return encode_merged(answer_text("", decode(content).strip(), calls))
    return join(encode(answer_text(reasoning, "", ())), content, encode(answer_text("", "", calls)))


def _part(role: str, body: Ids) -> Ids:
    return join([IM_START], encode(f"{role}\n"), body, [IM_END], encode("\n"))


def _content(content: Any) -> Ids:
    if content is None:
        return encode("")
    if isinstance(content, str):
        return encode(content)
    pieces: list[Ids | Sequence[int]] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                pieces.append(encode(text))
            case {"type": "image_url"}:
                pieces.append([IMAGE] * IMAGE_TOKENS)
            case _:
                pieces.append(encode(json.dumps(part)))
    return join(*pieces)

"""One answer of the scripted model: what was sampled, and its values per token, before they are written."""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.engine.quirks import Quirk
from tests.engine.tokens import TOKEN_BYTES, VOCABULARY, Ids, decode, parse_text
from tests.engine.values import (
    Heads,
    Ragged,
    expected_heads,
    expected_mask,
    expected_versions,
    outside_heads,
    repeated_heads,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.engine.replies import Reply


@dataclass
class Turn:
    """What was sampled behind `prompt_ids`. `text` has no special tokens, and ends before a stop string."""

    prompt_ids: Ids
    sampled: Ids
    text: str
    finish_reason: str
    stop_reason: str | None
    reply: Reply
    weights: str
    middle: int = field(init=False)

    def __post_init__(self) -> None:
        self.middle = len(self.sampled) // 2

    def has(self, quirk: Quirk) -> bool:
        """Whether the answer is to be out of the ordinary in this way."""
        return quirk in self.reply.quirks

    @property
    def length(self) -> int:
        """Tokens of the prompt and of the answer."""
        return len(self.prompt_ids) + len(self.sampled)

    def heads(self, count: int) -> Heads:
        """What the engine has when `count` candidates are asked for: at least the sampled token, and
        `count + 1` entries where that is not among the best."""
        if count and self.has(Quirk.SAMPLED_OUTSIDE_TOP_K):
            heads = outside_heads(self.sampled, count)
        elif count > 1 and self.has(Quirk.SAMPLED_REPEATED):
            heads = repeated_heads(self.sampled, count)
        else:
            heads = expected_heads(self.sampled, max(count, 1))
        ids, logprobs, ranks = heads
        if not len(ids):
            return heads
        if count and self.has(Quirk.HEAD_MINUS_INF):
            logprobs[:, -1] = -np.inf
            ids[:, -1] = VOCABULARY - 1 - np.arange(len(ids)) % 100
        if count > 1 and self.has(Quirk.HEAD_NOT_SAMPLED):
            ids[self.middle, :2] = ids[self.middle, 1::-1]
        for quirk, value in (
            (Quirk.LOGPROB_NAN, np.nan),
            (Quirk.LOGPROB_NAN_LITERAL, np.nan),
            (Quirk.LOGPROB_MINUS_INF, -np.inf),
            (Quirk.LOGPROB_POSITIVE, 0.5),
        ):
            if self.has(quirk):
                logprobs[self.middle, 0] = value
        return Heads(ids, logprobs, ranks)

    def mask_rows(self) -> list[list[int]] | None:
        """Kept ids of each sampled token."""
        if self.has(Quirk.MASK_MISSING):
            return None
        rows = Ragged(*expected_mask(self.sampled)).rows()
        if not rows:
            return rows
        if self.has(Quirk.MASK_WITHOUT_SAMPLED):
            rows[self.middle] = [(int(self.sampled[self.middle]) + 100) % VOCABULARY]
        if self.has(Quirk.MASK_EMPTY_ROW):
            rows[self.middle] = []
        return rows[:-1] if self.has(Quirk.MASK_SHORT) else rows

    def versions(self) -> list[dict[str, Any]] | None:
        """Spans of weight versions."""
        if self.has(Quirk.SPANS_MISSING):
            return None
        labels = self.reply.versions if self.reply.versions is not None else (self.weights,)
        spans = expected_versions(labels, len(self.sampled))
        if spans and self.has(Quirk.SPANS_SHORT):
            spans[-1]["end"] -= 1
        if spans and self.has(Quirk.SPANS_GAP):
            half = {"version": spans[-1]["version"], "start": self.middle + 1, "end": spans[-1]["end"]}
            spans[-1]["end"] = self.middle
            spans.append(half)
        return spans

    def ids(self) -> list[Any] | None:
        """The sampled ids, as they are told."""
        if self.has(Quirk.IDS_MISSING):
            return None
        ids: list[Any] = self.sampled.tolist()
        if ids and self.has(Quirk.IDS_NEGATIVE):
            ids[self.middle] = -1
        if self.has(Quirk.IDS_TEXT):
            ids = list(map(str, ids))
        return ids[:-1] if self.has(Quirk.IDS_SHORT) else ids

    def told_prompt(self) -> list[int] | None:
        """The prompt's ids, as they are told."""
        return None if self.has(Quirk.PROMPT_IDS_MISSING) else self.prompt_ids.tolist()

    def usage(self) -> dict[str, Any] | None:
        """Token counts as OpenAI has them."""
        if self.has(Quirk.USAGE_MISSING):
            return None
        prompt, sampled = len(self.prompt_ids), len(self.sampled) + self.has(Quirk.USAGE_WRONG)
        cached = self.reply.cached_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        }

    def message(self, reasoning_key: str, *, parsers: bool, tools: bool) -> dict[str, Any] | None:
        """The assistant message of the text."""
        if self.has(Quirk.MESSAGE_NULL):
            return None
        message = message_of(self.text, reasoning_key, parsers=parsers, tools=tools, salt=self.prompt_ids)
        if self.has(Quirk.LONE_SURROGATE):
            message["content"] = f"{message['content'] or ''}\ud83d"
        if self.has(Quirk.CONTENT_NULL):
            message["content"] = None
        if self.has(Quirk.ARGUMENTS_PARSED):
            for call in message.get("tool_calls", ()):
                with contextlib.suppress(ValueError):
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return message


def message_of(text: str, reasoning_key: str, *, parsers: bool, tools: bool, salt: Ids) -> dict[str, Any]:
    """The assistant message that a text is parsed to, as vLLM has it: null where there is no content beside
    calls or reasoning, no key for no calls. `tools` were given. `salt` makes the ids of calls."""
    parsed = parse_text(text, tools=tools) if parsers else None
    reasoning, content, calls = parsed or ("", text, ())
    message: dict[str, Any] = {
        "role": "assistant",
        "content": content or (None if calls or reasoning else ""),
        reasoning_key: reasoning or None,
    }
    if calls:
        of = zlib.crc32(salt.tobytes())
        message["tool_calls"] = [
            {
                "id": f"call-{of:08x}-{index}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    return message


def sample(
    prompt_ids: Ids, reply: Reply, weights: str, *, max_tokens: int | None, stop: Sequence[str]
) -> Turn:
    """The reply as it is sampled: up to `max_tokens`, and up to the first stop string, whose ids are kept."""
    ids = reply.sampled()
    finish, stopped = "stop", None
    if (cut := _first_stop(ids, stop)) is not None:
        stopped, ids = cut[0], ids[: cut[1]]
    if max_tokens is not None and len(ids) > max_tokens:
        finish, stopped, ids = "length", None, ids[:max_tokens]
    text = decode(ids)
    return Turn(
        prompt_ids=prompt_ids,
        sampled=ids,
        text=text[: len(text) - len(stopped)] if stopped else text,
        finish_reason=reply.finish_reason or finish,
        stop_reason=stopped,
        reply=reply,
        weights=weights,
    )


def _first_stop(ids: Ids, stop: Sequence[str]) -> tuple[str, int] | None:
    """The stop string that ends first, and how many ids reach to its end."""
    if not stop:
        return None
    lengths = np.cumsum([len(TOKEN_BYTES[index]) for index in ids.tolist()])
    raw = b"".join(TOKEN_BYTES[index] for index in ids.tolist())
    ends = [(start + len(text.encode()), text) for text in stop if (start := raw.find(text.encode())) >= 0]
    if not ends:
        return None
    end, text = min(ends)
    return text, int(np.searchsorted(lengths, end)) + 1

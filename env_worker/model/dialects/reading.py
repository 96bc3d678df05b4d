"""Filling an answer field by field: what cannot be used becomes a hole, and the rest stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from env_worker.domain import ImagePart, JsonPart, TextPart
from env_worker.model.dialects.base import (
    LOGPROBS,
    TOKEN_IDS,
    WEIGHT_VERSIONS,
    Answer,
    EngineOptions,
    Question,
    RoutingRows,
)
from env_worker.model.errors import MalformedAnswerError
from env_worker.model.fields.json_values import (
    ABSENT,
    AbsentError,
    FieldError,
    get_count,
    get_list,
    get_name,
    get_object,
    integers,
)
from env_worker.model.fields.logprobs import sampled_logprobs, top_logprobs
from env_worker.model.fields.masks import sampling_mask
from env_worker.model.fields.messages import finish_reason
from env_worker.model.fields.sampling import heads_wanted
from env_worker.model.fields.sizes import MAX_TURN_BYTES, text_bytes
from env_worker.model.fields.versions import weight_versions
from env_worker.model.json_pieces import LargeObject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from env_worker.domain import Int32Array, Message, Part
    from env_worker.model.fields.logprob_shapes import Candidates, Sampled
    from env_worker.model.fields.routing import Placed

T = TypeVar("T")

ROUTED_EXPERTS: Final = "routed_experts"
SAMPLING_MASK: Final = "sampling_mask"
TOP_LOGPROBS: Final = "top_logprobs"

_TOKEN_BYTES: Final = 9
"""Of a node: an int32, a bool and a float32."""
_FRAME_BYTES: Final = 16
"""What frames a text in a message, or more."""
_MOST_REASON: Final = 500
"""Characters of a hole's reason, as nodes have them."""


def asked_for(question: Question, options: EngineOptions, *always: str) -> frozenset[str]:
    """Fields whose absence is a hole: those of the worker's setting, heads where the sampling parameters want
    some, and what a dialect asks for `always`."""
    heads = {TOP_LOGPROBS} if heads_wanted(question.sampling) else set[str]()
    return options.arrays | heads | set(always)


def begin(response: Mapping[str, Any], choice: Mapping[str, Any], message: Message) -> Answer:
    """The answer that there is without any array."""
    usage = get_object(response, "usage")
    return Answer(
        message=message,
        finish_reason=finish_reason(choice),
        model=get_name(response, "model"),
        prompt_tokens=get_count(usage, "prompt_tokens") or 0,
        completion_tokens=get_count(usage, "completion_tokens") or 0,
        cached_tokens=get_count(get_object(usage, "prompt_tokens_details"), "cached_tokens"),
    )


async def aside(read: Callable[[], T], *responses: Mapping[str, Any]) -> T:
    """What `read` makes of `responses`: in a thread if there is much to read, so that the loop's other runs
    go on."""
    if any(isinstance(response, LargeObject) for response in responses):
        return await asyncio.to_thread(read)
    return read()


async def read_aside(read: Callable[[], Answer], *responses: Mapping[str, Any]) -> Answer:
    """As `aside`. MalformedAnswerError if the answer is too large for a node of a trace."""

    def fitting() -> Answer:
        answer = read()
        check_node(answer)
        return answer

    return await aside(fitting, *responses)


def check_node(answer: Answer) -> None:
    """MalformedAnswerError if `answer` is too large for a node of a trace."""
    if (size := node_bytes(answer)) > MAX_TURN_BYTES:
        raise MalformedAnswerError(
            f"the engine's answer makes a node of {size} bytes with its tokens, the limit is "
            f"{MAX_TURN_BYTES}; lower max_tokens, or check the engine's URL and dialect"
        )


def node_bytes(answer: Answer) -> int:
    """What the node of `answer` has on the wire, or a little more."""
    message = answer.message
    texts = [message.reasoning, message.extra_json, message.tool_call_id, message.name]
    if isinstance(message.content, str):
        texts.append(message.content)
    else:
        texts += map(_text, message.content)
    for call in message.tool_calls:
        texts += call.id, call.name, call.arguments
    tokens = sum(len(ids) for ids in (answer.prompt_ids, answer.sampled_ids) if ids is not None)
    return sum(map(text_bytes, texts)) + len(texts) * _FRAME_BYTES + tokens * _TOKEN_BYTES


def _text(part: Part) -> str:
    match part:
        case TextPart(text) | ImagePart(text) | JsonPart(text):
            return text


class AnswerReader:
    """Reads the fields of one answer. Token ids come first: without them nothing else per token is read.

    Args:
        answer: as `begin` makes it; its fields are filled in.
        asked: fields whose absence is a hole. What is there, but wrong, always is one.
    """

    def __init__(self, answer: Answer, asked: frozenset[str]) -> None:
        self.answer: Final = answer
        self._asked: Final = asked
        self._sampled: Int32Array | None = None

    def token_ids(
        self,
        prompt: tuple[Mapping[str, Any], str],
        sampled: tuple[Mapping[str, Any], str],
        usage: Mapping[str, Any],
    ) -> bool:
        """Read both, each of an object and a key. False where one is missing or the counts do not agree:
        then each array that was asked for has a hole."""
        ids = self._take(TOKEN_IDS, lambda: _counted(_ids(*prompt), _ids(*sampled), usage))
        if ids is None:
            self._hint(TOKEN_IDS, "is the dialect that of this server?")
            for field in self._asked - {TOKEN_IDS, WEIGHT_VERSIONS}:
                self._hole(field, f"no token ids: {self.answer.holes.get(TOKEN_IDS, 'none were asked for')}")
            return False
        answer = self.answer
        answer.prompt_ids, answer.sampled_ids = ids
        self._sampled = answer.sampled_ids
        answer.prompt_tokens = answer.prompt_tokens or len(ids[0])
        answer.completion_tokens = answer.completion_tokens or len(ids[1])
        return True

    def logprobs(self, read: Callable[[int], Sampled]) -> None:
        """Of the sampled tokens. `read` is told how many there are."""
        if (sampled := self._sampled) is not None and len(sampled):
            self.answer.logprobs = self._take(LOGPROBS, lambda: sampled_logprobs(read(len(sampled)), sampled))

    def top_logprobs(self, read: Callable[[int], Candidates], width: int) -> None:
        """Up to `width` candidates of each sampled token."""
        if (sampled := self._sampled) is None or not len(sampled):
            return
        if width:
            self.answer.top_logprobs = self._take(
                TOP_LOGPROBS, lambda: top_logprobs(read(len(sampled)), sampled, width)
            )
        else:
            self.lacks(TOP_LOGPROBS, "the sampling parameters ask for none; set logprobs to how many")

    def sampling_mask(self, parent: Mapping[str, Any], key: str, *, hint: str) -> None:
        """Of the sampled tokens. `hint` is the next step where there is none."""
        if (sampled := self._sampled) is not None and len(sampled):
            self.answer.sampling_mask = self._take(SAMPLING_MASK, lambda: sampling_mask(parent, key, sampled))
            self._hint(SAMPLING_MASK, hint)

    def routing(self, read: Callable[[int], Placed]) -> None:
        """Of prompt and sampled tokens. `read` is told how many there are."""
        answer = self.answer
        if answer.prompt_ids is None or answer.sampled_ids is None:
            return
        tokens = len(answer.prompt_ids) + len(answer.sampled_ids)
        if (placed := self._take(ROUTED_EXPERTS, lambda: read(tokens))) is not None:
            answer.routing = RoutingRows(*placed)

    def weight_versions(self, parent: Mapping[str, Any], key: str) -> None:
        """Of the sampled tokens."""
        if (sampled := self._sampled) is not None:
            spans = self._take(WEIGHT_VERSIONS, lambda: weight_versions(parent, key, len(sampled)))
            self.answer.weight_versions = spans or ()

    def lacks(self, field: str, reason: str) -> None:
        """The API has no `field`: a hole if it was asked for."""
        if field in self._asked:
            self._hole(field, reason)

    def _take(self, field: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except AbsentError as absent:
            self.lacks(field, str(absent))
        except FieldError as wrong:
            self._hole(field, str(wrong))
        except (ValueError, OverflowError, MemoryError) as refused:  # numpy's, of what no check has foreseen
            self._hole(field, f"{field} of the response fits no array: {type(refused).__name__} {refused}")
        return None

    def _hint(self, field: str, hint: str) -> None:
        """Add the next step to the hole of a field that is not there at all."""
        if (reason := self.answer.holes.get(field, "")).startswith(ABSENT):
            self._hole(field, f"{reason}; {hint}")

    def _hole(self, field: str, reason: str) -> None:
        self.answer.holes[field] = reason[:_MOST_REASON]


def _counted(
    prompt: Int32Array, sampled: Int32Array, usage: Mapping[str, Any]
) -> tuple[Int32Array, Int32Array]:
    """Both, if they are as many as the engine has counted: of the prompt those that it has forwarded, images
    and all. FieldError if they are not."""
    if not len(prompt):
        raise FieldError("the response has a prompt without token ids")
    counted = get_count(usage, "prompt_tokens")
    if counted and counted != len(prompt):  # no prompt has none: 0 is not counted
        raise FieldError(
            f"the response has {len(prompt)} ids of the prompt, but counts {counted} prompt tokens"
        )
    counted = get_count(usage, "completion_tokens")
    if counted is not None and counted != len(sampled):
        raise FieldError(f"the response has {len(sampled)} token ids, but counts {counted} completion tokens")
    return prompt, sampled


def _ids(parent: Mapping[str, Any], key: str) -> Int32Array:
    return integers(get_list(parent, key), key)

"""A model that is none: seeded answers with the shapes of a real engine's, and no download."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import Call, EpisodeError, Message, SamplingParams
from env_worker.model import simulate_arrays
from env_worker.model.base import Turn, check_asked, show_asked
from env_worker.model.offered import branch
from env_worker.model.simulate_text import words, wrong_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from env_worker.domain import Trace

SIMULATED: Final = "simulated"

_ROLE_IDS: Final = {"system": 1, "developer": 2, "user": 3, "assistant": 4, "tool": 5}
_END_ID: Final = 6
_REASONING_WORDS: Final = (6, 24)  # at least, below
_ANSWER_WORDS: Final = (4, 16)
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Answers rightly at rate `accuracy`, with token ids, log-probabilities and all three training arrays.

    What it answers follows from `seed`, the sampling seed and the conversation so far, and from nothing else:
    neither from timing nor from other runs. It reads `reference` (a right answer) and wraps its answer in
    `<answer>` tags when the conversation speaks of them; without a reference it answers with seeded words. It
    never calls a tool. Of the sampling parameters it follows `seed`, `max_tokens` and `logprobs`. Every Call
    of it says `simulated`.

    The routing has the shape of Qwen3-30B-A3B by default: 384 bytes a token.
    `mask_width` and `head_width` are the most ids that a sampled token's mask and head hold; 0 leaves the
    array out, as `layers` 0 leaves out the routing. `token_seconds` is how long one sampled token takes.

    Raises ValueError when a parameter is out of its range.
    """

    seed: int = 0
    accuracy: float = 0.6
    layers: int = 48
    top_k: int = 8
    experts: int = 128
    vocabulary: int = 32_768
    mask_width: int = 16
    head_width: int = 4
    token_seconds: float = 0.0

    def __post_init__(self) -> None:
        for field, low, high in (
            ("seed", 0, 2**63 - 1),
            ("accuracy", 0, 1),
            ("layers", 0, 512),
            ("experts", 2, simulate_arrays.MAX_EXPERTS),
            ("top_k", 1, self.experts),
            ("vocabulary", simulate_arrays.MIN_VOCABULARY, 2**20),
            ("mask_width", 0, self.vocabulary),
            ("head_width", 0, self.vocabulary),
            ("token_seconds", 0, 60),
        ):
            value = getattr(self, field)
            if not low <= value <= high:
                raise ValueError(
                    f"{field} of the simulated model is {value}, but must be between {low} and {high}"
                )

    @property
    def name(self) -> str:
        return SIMULATED

    @property
    def simulated(self) -> bool:
        return True

    async def chat(
        self,
        trace: Trace,
        messages: Sequence[Message],
        *,
        parent: int | None = None,
        sampling: SamplingParams | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        reference: str | None = None,
    ) -> Turn:
        """See `ModelClient.chat`."""
        check_asked(messages, parent, sampling)
        sampling = sampling or SamplingParams()
        path = () if parent is None else trace.path(parent)
        history = [trace.nodes[index].message for index in path]
        before = self._digest(sampling, history)
        rng = _rng(before, messages)
        answer, finish_reason = _truncated(
            self._answer(rng, [*history, *messages], reference), sampling.max_tokens
        )
        tools_json = show_asked(trace, messages, parent, tools)
        started_at, started = time.time(), time.perf_counter()
        sampled = self._sampled_ids(answer, finish_reason)
        try:
            await asyncio.sleep(self.token_seconds * len(sampled))
        except BaseException as error:
            trace.clear_pending()
            failure = EpisodeError.from_exception(error, "model")
            trace.add_call(_call(None, started_at, started, error=failure))
            raise

        own = branch(trace, parent, tools_json)
        if own.parent != parent and own.parent is not None:
            before = self._digest(sampling, [trace.nodes[index].message for index in trace.path(own.parent)])
        parent = own.parent
        self._repair(trace, parent, before)
        prompt_tokens = 1 + (0 if parent is None else len(trace.token_ids(parent)))  # 1: the answer's header
        for message in (*own.again, *messages):
            tools_of_root = (tools_json, own.tools_json) if parent is None else ("", "")
            parent = self._add_prompt(trace, rng, message, parent, *tools_of_root)
            prompt_tokens += len(trace.nodes[parent].token_ids)
        node = self._add_answer(trace, rng, answer, sampled, finish_reason, parent, sampling)
        trace.add_call(_call(node, started_at, started, prompt_tokens, len(sampled), finish_reason))
        return Turn(node=node, message=answer, finish_reason=finish_reason)

    def _digest(self, sampling: SamplingParams, history: Iterable[Message]) -> bytes:
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        digest.update(f"{self.seed}/{sampling.seed}".encode())
        _feed(digest, history)
        return digest.digest()

    def _answer(
        self, rng: np.random.Generator, conversation: Sequence[Message], reference: str | None
    ) -> Message:
        right = rng.random() < self.accuracy
        reasoning = words(rng, int(rng.integers(*_REASONING_WORDS)))
        if reference is None:
            return Message.assistant(words(rng, int(rng.integers(*_ANSWER_WORDS))), reasoning=reasoning)
        answer = reference if right else wrong_answer(rng, reference)
        if any("<answer>" in message.text for message in conversation):
            answer = f"<answer>{answer}</answer>"
        return Message.assistant(answer, reasoning=reasoning)

    def _sampled_ids(self, answer: Message, finish_reason: str) -> NDArray[np.int32]:
        ids = [simulate_arrays.token_ids(part, self.vocabulary) for part in (answer.reasoning, answer.text)]
        if finish_reason == "stop":
            ids.append(np.array([_END_ID], dtype=np.int32))
        return np.concatenate(ids)

    def _add_prompt(
        self,
        trace: Trace,
        rng: np.random.Generator,
        message: Message,
        parent: int | None,
        offered: str,
        told: str,
    ) -> int:
        """`offered` are the tools that stand in front of it, "" for none; `told` is what its node says of
        them."""
        tools = simulate_arrays.token_ids(offered, self.vocabulary)
        content = simulate_arrays.token_ids(message.text, self.vocabulary)
        ids = np.concatenate((tools, [_ROLE_IDS[message.role]], content, [_END_ID])).astype(np.int32)
        is_content = np.ones(len(ids), dtype=np.bool_)
        is_content[: len(tools) + 1] = is_content[-1] = False
        return trace.add_node(
            message,
            ids,
            mask=np.zeros(len(ids), dtype=np.bool_),
            is_content=is_content,
            parent=parent,
            tools_json=told,
            routed_experts=self._routing(rng, len(ids)),
        )

    def _add_answer(
        self,
        trace: Trace,
        rng: np.random.Generator,
        answer: Message,
        sampled: NDArray[np.int32],
        finish_reason: str,
        parent: int | None,
        sampling: SamplingParams,
    ) -> int:
        ids = np.concatenate(([_ROLE_IDS["assistant"]], sampled)).astype(np.int32)
        mask = np.ones(len(ids), dtype=np.bool_)
        mask[0] = False  # the template's header is part of the prompt
        is_content = mask.copy()
        if finish_reason == "stop":
            is_content[-1] = False
        head_width = self.head_width if sampling.logprobs is None else min(sampling.logprobs, self.vocabulary)
        sampled_logprobs = simulate_arrays.logprobs(rng, len(sampled))
        routing = self._routing(rng, len(ids))
        if routing is not None:
            # An engine has not forwarded the last token yet: a placeholder until the next prefill.
            routing[-1] = routing[-2]
        return trace.add_node(
            answer,
            ids,
            mask=mask,
            is_content=is_content,
            logprobs=sampled_logprobs,
            parent=parent,
            sampled=True,
            routed_experts=routing,
            sampling_mask=simulate_arrays.sampling_mask(
                rng, sampled, width=self.mask_width, vocabulary=self.vocabulary
            )
            if self.mask_width
            else None,
            top_logprobs=simulate_arrays.top_logprobs(
                rng, sampled, sampled_logprobs, width=head_width, vocabulary=self.vocabulary
            )
            if head_width
            else None,
        )

    def _routing(self, rng: np.random.Generator, tokens: int) -> NDArray[Any] | None:
        if not self.layers:
            return None
        return simulate_arrays.routed_experts(
            rng, tokens, layers=self.layers, top_k=self.top_k, experts=self.experts
        )

    def _repair(self, trace: Trace, parent: int | None, before: bytes) -> None:
        """Give the parent's last token the routing that this turn's prefill found.

        It follows from the conversation up to the parent alone, so every branch that starts there agrees on
        it.
        """
        if parent is None:
            return
        node = trace.nodes[parent]
        if not node.sampled or node.routed_experts is None:
            return
        values = self._routing(_rng(before, ()), 1)
        if values is not None:
            trace.repair_routing(parent, len(node.token_ids) - 1, values)


def _rng(before: bytes, messages: Iterable[Message]) -> np.random.Generator:
    digest = hashlib.blake2b(before, digest_size=_DIGEST_BYTES)
    _feed(digest, messages)
    return np.random.default_rng(int.from_bytes(digest.digest(), "little"))


def _feed(digest: hashlib.blake2b, messages: Iterable[Message]) -> None:
    for message in messages:
        text = json.dumps(message.to_openai(), sort_keys=True)
        digest.update(f"{len(text)}:{text}".encode())


def _truncated(answer: Message, max_tokens: int | None) -> tuple[Message, str]:
    """`answer` cut to `max_tokens` sampled tokens (one of them ends the turn), and its finish reason."""
    reasoning, content = answer.reasoning.encode(), answer.text.encode()
    needed = math.ceil(len(reasoning) / 4) + math.ceil(len(content) / 4) + 1
    if max_tokens is None or needed <= max_tokens:
        return answer, "stop"
    reasoning = reasoning[: max_tokens * 4]
    content = content[: (max_tokens - math.ceil(len(reasoning) / 4)) * 4]
    cut = Message.assistant(content.decode("utf-8", "ignore"), reasoning=reasoning.decode("utf-8", "ignore"))
    return cut, "length"


def _call(
    node: int | None,
    started_at: float,
    started: float,
    prompt_tokens: int = 0,
    completion_tokens: int = 0,
    finish_reason: str = "",
    error: EpisodeError | None = None,
) -> Call:
    return Call(
        node=node,
        model=SIMULATED,
        dialect=SIMULATED,
        started_at=started_at,
        duration_seconds=time.perf_counter() - started,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        finish_reason=finish_reason,
        error=error,
        simulated=True,
    )

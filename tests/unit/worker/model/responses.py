"""Responses of engines to one turn, made by hand from their APIs, and a `post` that gives them."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker.domain import Message, SamplingParams
from env_worker.model.dialects import DIALECTS
from env_worker.model.dialects.base import EngineOptions, Question

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from env_worker.model.dialects.base import Answer

PROMPT = [11, 12, 13, 14, 15]
SAMPLED = [21, 22, 23]
LOGPROBS = [-0.5, -0.25, -0.125]
TOKENS = len(PROMPT) + len(SAMPLED)
LAYERS, TOP_K = 3, 2
HEADS = [[(t, lp), (t + 100, lp - 1), (t + 200, lp - 2)] for t, lp in zip(SAMPLED, LOGPROBS, strict=True)]
"""Candidates of each sampled token: id and log-probability, itself first."""
MASKS = [[21, 1], [2, 22], [23]]
SPANS = [{"version": "v1", "start": 0, "end": 2}, {"version": "v2", "start": 2, "end": 3}]
USAGE = {
    "prompt_tokens": len(PROMPT),
    "completion_tokens": len(SAMPLED),
    "total_tokens": TOKENS,
    "prompt_tokens_details": {"cached_tokens": 4},
}
MESSAGE: dict[str, Any] = {"role": "assistant", "content": "hi", "reasoning": "hm", "tool_calls": []}
ALL = EngineOptions(
    arrays=frozenset({"routed_experts", "top_logprobs"}), routing_shape=(LAYERS, TOP_K), experts=256
)


def rows(start: int = 0, dtype: str = "uint8") -> NDArray[Any]:
    """Routing rows of the turn from a position on: each tells its position."""
    positions = np.arange(start, TOKENS - 1, dtype=np.int64)[:, None, None]
    return (1 + positions * 10 + np.arange(LAYERS * TOP_K).reshape(LAYERS, TOP_K)).astype(dtype)


def npy(array: NDArray[Any]) -> str:
    """`array` as vLLM sends it."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


def plain(array: NDArray[Any]) -> str:
    """`array`'s bytes alone, in base64."""
    return base64.b64encode(array.tobytes()).decode()


def vllm_chat(**choice: Any) -> dict[str, Any]:
    """Of `/v1/chat/completions`, everything asked for with two heads."""
    content = [
        {
            "token": f"token_id:{heads[0][0]}",
            "logprob": heads[0][1],
            "bytes": None,
            "top_logprobs": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": None} for token, value in heads
            ],
        }
        for heads in HEADS
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": dict(MESSAGE),
                "logprobs": {"content": content},
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": list(SAMPLED),
                "routed_experts": npy(rows()),
                "weight_versions": [dict(span) for span in SPANS],
                **choice,
            }
        ],
        "usage": dict(USAGE),
        "prompt_token_ids": list(PROMPT),
        "prompt_logprobs": None,
    }


def vllm_completions(**choice: Any) -> dict[str, Any]:
    """Of `/v1/completions`, with two heads."""
    response = vllm_chat(
        text="hi",
        prompt_token_ids=list(PROMPT),
        logprobs={
            "text_offset": [0, 1, 2],
            "token_logprobs": list(LOGPROBS),
            "tokens": [f"token_id:{token}" for token in SAMPLED],
            "top_logprobs": [{f"token_id:{token}": value for token, value in heads} for heads in HEADS],
        },
        **choice,
    )
    del response["choices"][0]["message"], response["prompt_token_ids"]
    return response


def vllm_generate(**choice: Any) -> dict[str, Any]:
    """Of `/inference/v1/generate` since 0.32, with two heads."""
    content = [
        {
            "token_id": heads[0][0],
            "logprob": heads[0][1],
            "rank": 1,
            "top_logprobs": [
                {"token_id": token, "logprob": value, "rank": rank + 1}
                for rank, (token, value) in enumerate(heads)
            ],
        }
        for heads in HEADS
    ]
    masks = [list(mask) for mask in MASKS]
    response = vllm_chat(**{"logprobs": {"content": content}, "sampling_mask": masks, **choice})
    del response["choices"][0]["message"]
    return {"output_mode": "tokens", **response}


def rendered(**request: Any) -> dict[str, Any]:
    """Of `/v1/chat/completions/render`."""
    return {
        "request_id": "chatcmpl-render",
        "token_ids": list(PROMPT),
        "features": None,
        "sampling_params": {"temperature": 0.5, "max_tokens": 99, "logprobs": 7, "seed": None},
        "model": "m",
        "stream": True,
        "stream_options": None,
        "cache_salt": None,
        "priority": 3,
        "parse_context": {"tools": None},
        **request,
    }


def derendered(**message: Any) -> dict[str, Any]:
    """Of `/v1/chat/completions/derender`."""
    return {
        "choices": [{"index": 0, "message": {**MESSAGE, **message}, "finish_reason": "stop"}],
        "usage": dict(USAGE),
    }


def sglang_chat(**meta: Any) -> dict[str, Any]:
    """Of SGLang, with two heads, which are the best by rank: the sampled token may be among them."""
    return {
        "id": "1",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hi", "reasoning_content": "hm"},
                "logprobs": {"content": [{"token": "x", "logprob": -9.0}] * 3},
                "finish_reason": "stop",
                "matched_stop": 2,
                "prompt_token_ids": list(PROMPT),
                "response_token_ids": list(SAMPLED),
                "meta_info": {
                    "finish_reason": {"type": "stop", "matched": 2},
                    "cached_tokens": 4,
                    "output_token_logprobs": [[heads[0][1], heads[0][0], None] for heads in HEADS],
                    "output_top_logprobs": [
                        [[value, token, None] for token, value in heads[:2]] for heads in HEADS
                    ],
                    "output_token_sampling_mask": [list(mask) for mask in MASKS],
                    "routed_experts": plain(rows(dtype="<i4")),
                    **meta,
                },
            }
        ],
        "usage": {**USAGE, "prompt_tokens_details": None},
        "metadata": {"weight_version": "v2", "weight_versions": [dict(span) for span in SPANS]},
    }


class Engine:
    """Answers each path with its response, or raises it, and remembers what was posted."""

    def __init__(self, responses: Mapping[str, Any]) -> None:
        self._responses = responses
        self.posted: list[tuple[str, dict[str, Any]]] = []

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Post`."""
        self.posted.append((path, dict(body)))
        response = self._responses[path]
        if isinstance(response, list):
            response = response.pop(0)
        if isinstance(response, Exception):
            raise response
        answer: Mapping[str, Any] = response
        return answer

    def body(self, path: str) -> dict[str, Any]:
        """What was posted there last."""
        return next(body for at, body in reversed(self.posted) if at == path)


def question(
    messages: Sequence[Message] = (Message.user("hello"),),
    *,
    known: Sequence[int] = (),
    tools: Sequence[Mapping[str, Any]] = (),
    **sampling: Any,
) -> Question:
    """A turn's request; two heads are wanted unless `logprobs` says otherwise."""
    return Question(
        model="m",
        messages=messages,
        sampling=SamplingParams(**{"logprobs": 2, **sampling}),
        tools=tools,
        known=np.array(known, np.int32),
        conversation="conversation-1",
    )


SAMPLING_PATH = {
    "openai-chat": "chat/completions",
    "vllm-chat": "chat/completions",
    "vllm-completions": "completions",
    "vllm-generate": "/inference/v1/generate",
    "sglang-chat": "chat/completions",
}


def engine(dialect: str, response: Any = None) -> Engine:
    """One that speaks `dialect`; `response` is that of the request that samples."""
    made = {
        "openai-chat": vllm_chat,
        "vllm-chat": vllm_chat,
        "vllm-completions": vllm_completions,
        "vllm-generate": vllm_generate,
        "sglang-chat": sglang_chat,
    }[dialect]
    return Engine(
        {
            "chat/completions/render": rendered(),
            "chat/completions/derender": derendered(),
            SAMPLING_PATH[dialect]: made() if response is None else response,
        }
    )


async def ask(
    dialect: str, response: Any = None, asked: Question | None = None, options: EngineOptions = ALL
) -> Answer:
    """The answer that `dialect` makes of `response`."""
    return await DIALECTS[dialect].ask(asked or question(), options, engine(dialect, response).post)

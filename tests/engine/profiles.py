"""What each version of an engine can do, as flags that behaviour follows, and what a server was started with.

Sources are the protocol files of the releases named; versions in between changed nothing that is seen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Routing = Literal["none", "nested", "npy", "raw"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One version of an engine.

    `routing` is how expert rows are written on chat and completions: not at all, as nested lists cut at the
    prompt's end, as base64 of an npy file, or as base64 of int32 without a header. `routing_int32`: its npy
    dtype is int32 whatever the number of experts. `chat_rows_from` and `generate_rows_from`: which endpoints
    know `routed_experts_prompt_start`. `masks`, `generate_versions` and `chat_versions`: sampling masks and
    weight versions. `integer_ids`: logprobs of generate have integer ids, ranks, and no NaN. `output_modes`:
    generate can answer with text and message. `derender`: that endpoint exists; `derender_needs_request`: not
    without the chat request, as parsers are configured.
    """

    name: str
    family: Literal["vllm", "sglang", "openai"]
    routing: Routing = "none"
    routing_int32: bool = False
    generate_routing: bool = False
    chat_rows_from: bool = False
    generate_rows_from: bool = False
    masks: bool = False
    integer_ids: bool = False
    generate_versions: bool = False
    chat_versions: bool = False
    output_modes: bool = False
    render: bool = False
    derender: bool = False
    derender_needs_request: bool = False
    reasoning_key: str = "reasoning"


VLLM_0_13: Final = Profile("vllm-0.13", "vllm", reasoning_key="reasoning_content")
VLLM_0_21: Final = Profile("vllm-0.21", "vllm", routing="nested", render=True)
VLLM_0_22: Final = Profile(
    "vllm-0.22",
    "vllm",
    routing="npy",
    generate_routing=True,
    generate_rows_from=True,
    render=True,
    derender=True,
)
VLLM_0_28: Final = Profile(
    "vllm-0.28",
    "vllm",
    routing="npy",
    routing_int32=True,
    generate_routing=True,
    chat_rows_from=True,
    generate_rows_from=True,
    masks=True,
    render=True,
    derender=True,
)
VLLM_0_33: Final = Profile(
    "vllm-0.33",
    "vllm",
    routing="npy",
    generate_routing=True,
    chat_rows_from=True,
    generate_rows_from=True,
    masks=True,
    integer_ids=True,
    generate_versions=True,
    chat_versions=True,
    output_modes=True,
    render=True,
    derender=True,
    derender_needs_request=True,
)
SGLANG_0_5_23: Final = Profile(
    "sglang-0.5.23",
    "sglang",
    routing="raw",
    chat_rows_from=True,
    masks=True,
    chat_versions=True,
    reasoning_key="reasoning_content",
)
OPENAI: Final = Profile("openai", "openai")
"""OpenAI's own chat completions: no ids, and a key that it does not know is refused."""

PROFILES: Final = {
    profile.name: profile
    for profile in (VLLM_0_13, VLLM_0_21, VLLM_0_22, VLLM_0_28, VLLM_0_33, SGLANG_0_5_23, OPENAI)
}


@dataclass(frozen=True, slots=True)
class Served:
    """What the engine serves, and the flags that it was started with.

    `layers`, `top_k` and `experts` are the shape of the model's routing; `routed_experts` and `sampling_mask`
    say that the server was started to return those (vLLM then refuses requests without temperature and
    top_k); `priority` that it schedules by it. `max_logprobs` -1: no limit. `weights` labels the weights.
    `retokenize`: the template renders earlier answers to other ids than were sampled. `parsers`: reasoning
    and tool calls are parsed. `tokens_as_ids`: `--return-tokens-as-token-ids`. `api_key`: requests must bear
    it.
    """

    model: str = "scripted"
    layers: int = 4
    top_k: int = 2
    experts: int = 64
    routed_experts: bool = True
    sampling_mask: bool = False
    priority: bool = False
    max_logprobs: int = 20
    max_model_len: int = 1_000_000
    weights: str = "default"
    retokenize: bool = False
    parsers: bool = True
    tokens_as_ids: bool = False
    api_key: str = ""

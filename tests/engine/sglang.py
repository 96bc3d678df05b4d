"""SGLang's `/v1/chat/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.engine.logprobs import chat_logprobs, meta_logprobs
from tests.engine.quirks import Quirk
from tests.engine.routing import raw_routing
from tests.engine.tokens import IM_END
from tests.engine.values import expected_logprobs
from tests.engine.vllm_chat import chat_finish, chat_heads, chat_prompt
from tests.engine.vllm_completions import ids_of
from tests.engine.wanted import RefusedError, Wanted, check_length, field, sampling_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.profiles import Profile, Served
    from tests.engine.tokens import Ids
    from tests.engine.turn import Turn


def read_sglang_chat(body: Mapping[str, Any], served: Served) -> tuple[Ids, Wanted]:
    """Prompt and wishes of a chat request. `input_ids` go past the template."""
    if (model := field(body, "model", str, served.model)) != served.model:
        raise RefusedError(f"Model '{model}' not found.", 404, "NotFoundError")
    asked = {
        name: field(body, name, bool, False) for name in ("stream", "return_token_ids", "return_meta_info")
    }
    if asked["stream"]:
        named = "return_token_ids" if asked["return_token_ids"] else "return_meta_info"
        raise RefusedError(f"{named} is not supported with streaming on chat completions.")
    if field(body, "return_sampling_mask", bool, False) and not asked["return_meta_info"]:
        raise RefusedError("return_sampling_mask requires return_meta_info=true.")
    if field(body, "n", int, 1) != 1:
        raise RefusedError("The scripted engine gives one choice; leave n out.")
    prompt_ids = (
        ids_of(body["input_ids"], "input_ids") if body.get("input_ids") else chat_prompt(body, served)
    )
    check_length(prompt_ids, served)
    start: int = field(body, "routed_experts_start_len", int, 0)
    if not 0 <= start <= len(prompt_ids):
        raise RefusedError(f"routed_experts_start_len must be in [0, {len(prompt_ids)}], got {start}.")
    return prompt_ids, replace(sampling_of(body, served, chat_heads(body)), rows_from=start)


def sglang_response(
    turn: Turn, wanted: Wanted, body: Mapping[str, Any], profile: Profile, served: Served
) -> dict[str, Any]:
    """The response. Keys of what was not asked for are absent, where vLLM has null."""
    message = turn.message(profile.reasoning_key, parsers=served.parsers, tools=bool(body.get("tools")))
    if message is not None and not turn.has(Quirk.CONTENT_NULL):
        message["content"] = message["content"] or ""  # never null in SGLang
    meta = _meta_info(turn, wanted, body, served)
    with_ids = field(body, "return_token_ids", bool, False)
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "logprobs": None
        if wanted.heads is None
        else chat_logprobs(turn, wanted.heads, as_ids=False, safe=True),
        "finish_reason": chat_finish(turn, message),
        "matched_stop": meta["finish_reason"].get("matched"),
    }
    told = {
        "prompt_token_ids": turn.told_prompt()
        if with_ids or field(body, "return_prompt_token_ids", bool, False)
        else None,
        "response_token_ids": turn.ids() if with_ids else None,
        "meta_info": meta if field(body, "return_meta_info", bool, False) else None,
    }
    choice |= {key: value for key, value in told.items() if value is not None}
    versions = turn.versions()
    response: dict[str, Any] = {
        "id": f"sglang-{len(turn.prompt_ids)}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": served.model,
        "choices": [choice],
        "usage": turn.usage(),
        "metadata": {"weight_version": versions[-1]["version"], "weight_versions": versions}
        if versions
        else None,
    }
    if "meta_info" not in choice and "routed_experts" in meta:
        response["sglext"] = {"routed_experts": meta["routed_experts"]}
    return response


def _meta_info(turn: Turn, wanted: Wanted, body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    ended: dict[str, Any] = {"type": turn.finish_reason}
    if turn.finish_reason == "stop":
        ended["matched"] = turn.stop_reason or IM_END
    elif turn.finish_reason == "length":
        ended["length"] = len(turn.sampled)
    versions = turn.versions()
    meta: dict[str, Any] = {
        "id": f"sglang-{len(turn.prompt_ids)}",
        "finish_reason": ended,
        "prompt_tokens": len(turn.prompt_ids),
        "completion_tokens": len(turn.sampled),
        "cached_tokens": turn.reply.cached_tokens or 0,
        "weight_version": versions[-1]["version"] if versions else None,
        "weight_versions": versions,
    }
    if wanted.heads is not None:
        meta |= meta_logprobs(turn, wanted.heads)
    if field(body, "return_routed_experts", bool, False):
        rows = raw_routing(turn, served, wanted.rows_from)
        meta |= {} if rows is None else {"routed_experts": rows}
    if field(body, "return_sampling_mask", bool, False) and (rows_of := turn.mask_rows()) is not None:
        meta |= {
            "output_token_sampling_mask": rows_of,
            "output_token_sampling_logprobs": expected_logprobs(len(rows_of)).tolist(),
            "output_token_sampling_mask_length": len(rows_of),
        }
    return meta

"""vLLM's tokens in, tokens out: `render`, `/inference/v1/generate`, and `derender`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.engine.logprobs import chat_logprobs, generate_logprobs
from tests.engine.routing import npy_routing
from tests.engine.tokens import VOCABULARY, decode, join
from tests.engine.turn import message_of
from tests.engine.vllm_chat import chat_finish, chat_heads, chat_prompt
from tests.engine.vllm_completions import ids_of
from tests.engine.wanted import (
    RefusedError,
    Wanted,
    check_common,
    check_length,
    check_mask,
    field,
    rows_from,
    sampling_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.profiles import Profile, Served
    from tests.engine.tokens import Ids
    from tests.engine.turn import Turn

_COPIED = ("top_p", "top_k", "min_p", "seed", "stop", "repetition_penalty")


def render_response(body: Mapping[str, Any], profile: Profile, served: Served) -> dict[str, Any]:
    """The GenerateRequest that a chat request amounts to, sampling parameters filled in."""
    check_common(body, served)
    prompt_ids = chat_prompt(body, served)
    wanted = sampling_of(body, served, chat_heads(body))
    sampling = {name: body[name] for name in _COPIED if body.get(name) is not None}
    context = {"parse_context": _parse_context(body)} if profile.output_modes else {}
    return {
        "request_id": f"chatcmpl-{len(prompt_ids)}",
        "token_ids": prompt_ids.tolist(),
        "features": None,
        "sampling_params": {
            "temperature": field(body, "temperature", (int, float), 1.0),
            "max_tokens": wanted.max_tokens or served.max_model_len - len(prompt_ids),
            "logprobs": wanted.heads,
            **sampling,
        },
        "model": served.model,
        "stream": False,
        "stream_options": None,
        "cache_salt": body.get("cache_salt"),
        "priority": body.get("priority") or 0,
        "kv_transfer_params": None,
        **context,
    }


def read_generate(body: Mapping[str, Any], profile: Profile, served: Served) -> tuple[Ids, Wanted]:
    """Prompt and wishes of a generate request."""
    check_common(body, served)
    if (sampling := field(body, "sampling_params", dict)) is None:
        raise RefusedError("1 validation error: body.sampling_params: Field required")
    check_common({"n": sampling.get("n")}, served)
    check_mask(sampling, served)
    prompt_ids = ids_of(body.get("token_ids"), "token_ids")
    check_length(prompt_ids, served)
    if profile.output_modes and body.get("output_mode", "tokens") not in ("tokens", "text", "derender"):
        raise RefusedError(
            f"1 validation error: body.output_mode: Input should be 'tokens', 'text' or 'derender', not "
            f"{body['output_mode']!r}"
        )
    derenders = profile.output_modes and body.get("output_mode") == "derender"
    if derenders and served.parsers and field(body, "parse_context", dict) is None:
        raise RefusedError(
            "output_mode='derender' requires parse_context on a server with a tool or reasoning parser. "
            "Use the one returned by /render."
        )
    wanted = sampling_of(sampling, served, field(sampling, "logprobs", int))
    start = rows_from(sampling, prompt_ids) if profile.generate_rows_from else 0
    return prompt_ids, replace(wanted, rows_from=start)


def generate_response(
    turn: Turn, wanted: Wanted, body: Mapping[str, Any], profile: Profile, served: Served
) -> dict[str, Any]:
    """The response. Only newer versions know modes other than tokens, and tell the mode."""
    mode = body.get("output_mode", "tokens") if profile.output_modes else "tokens"
    told = field(body, "return_token_ids", bool, False)
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": turn.finish_reason,
        "token_ids": turn.ids(),
        "logprobs": None if wanted.heads is None else _logprobs(turn, wanted.heads, mode, profile, served),
    }
    if profile.generate_routing:
        choice["routed_experts"] = npy_routing(turn, profile, served, wanted.rows_from)
    if profile.masks:
        choice["sampling_mask"] = turn.mask_rows() if served.sampling_mask else None
    if profile.generate_versions:
        choice["weight_versions"] = turn.versions()
    if profile.integer_ids:
        choice["stop_reason"] = turn.stop_reason
    if mode == "text":
        choice["text"] = turn.text
    elif mode == "derender":
        tools = bool((body.get("parse_context") or {}).get("tools"))
        message = turn.message(profile.reasoning_key, parsers=served.parsers, tools=tools)
        choice |= {"message": message, "finish_reason": chat_finish(turn, message)}
    response: dict[str, Any] = {
        "request_id": f"generate-tokens-{len(turn.prompt_ids)}",
        "choices": [choice],
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }
    if profile.derender:
        response |= {"model": served.model, "created": 1_700_000_000, "usage": turn.usage()}
    if profile.output_modes:
        response |= {"output_mode": mode, "prompt_token_ids": turn.told_prompt() if told else None}
    return response


def derender_response(body: Mapping[str, Any], profile: Profile, served: Served) -> dict[str, Any]:
    """The chat completion that a generate response amounts to. Before 0.33 its finish reason is generate's
    own, also with tool calls."""
    check_common(body, served)
    if profile.derender_needs_request:
        if field(body, "chat_request", dict) is None:
            raise RefusedError("chat_request is required as a tool or reasoning parser is configured")
    elif field(body, "model", str) is None:
        raise RefusedError("1 validation error: body.model: Field required")
    generated = field(body, "generate_response", dict, {})
    if (mode := generated.get("output_mode", "tokens")) != "tokens":
        raise RefusedError(f"only output_mode 'tokens' responses are accepted, not {mode!r}")
    choices = []
    completion_tokens = 0
    for choice in field(generated, "choices", list, []):
        if not (ids := choice.get("token_ids")):
            raise RefusedError(f"choice {choice.get('index')} has empty or null token_ids")
        completion_tokens += len(ids)
        choices.append(_derendered(choice, ids, body, profile, served))
    prompt_tokens = field(body, "prompt_tokens", int, 0)
    return {
        "id": generated.get("request_id"),
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": served.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
        "prompt_logprobs": generated.get("prompt_logprobs"),
        "kv_transfer_params": None,
    }


def _derendered(
    choice: Mapping[str, Any], ids: Any, body: Mapping[str, Any], profile: Profile, served: Served
) -> dict[str, Any]:
    if not isinstance(ids, list) or not all(type(index) is int and 0 <= index < VOCABULARY for index in ids):
        raise RefusedError("token_ids must be ids of the model's vocabulary")
    text = decode(join(ids))
    finish, stopped = choice.get("finish_reason"), choice.get("stop_reason")
    if finish == "stop" and isinstance(stopped, str):
        text = text.rpartition(stopped)[0]
    request = body.get("chat_request") or {}
    parsed = served.parsers and bool(request)
    message = message_of(
        text, profile.reasoning_key, parsers=parsed, tools=bool(request.get("tools")), salt=join(ids)
    )
    if finish == "stop" and message.get("tool_calls") and profile.output_modes:
        finish = "tool_calls"
    return {
        "index": choice.get("index", 0),
        "message": message,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": stopped,
    }


def _logprobs(turn: Turn, heads: int, mode: str, profile: Profile, served: Served) -> dict[str, Any] | None:
    """Integer ids only with tokens: the other modes have texts, and derender is cut as chat is."""
    if not profile.integer_ids:
        return chat_logprobs(turn, heads, as_ids=True, cut=False)
    if mode == "tokens":
        return generate_logprobs(turn, heads)
    return chat_logprobs(turn, heads, as_ids=served.tokens_as_ids, cut=mode == "derender", safe=True)


def _parse_context(body: Mapping[str, Any]) -> dict[str, Any]:
    tools = body.get("tools") or None
    return {
        "tools": tools,
        "tool_choice": body.get("tool_choice") or ("auto" if tools else "none"),
        "parallel_tool_calls": True,
        "include_reasoning": True,
        "chat_template_kwargs": {},
        "history_tool_call_cnt": sum(len(each.get("tool_calls") or ()) for each in body["messages"]),
    }

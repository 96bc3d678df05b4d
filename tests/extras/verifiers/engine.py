"""An engine for verifiers' clients: chat completions, and vLLM's `/inference/v1/generate` with all arrays.

What it answers depends on the conversation and on words in the model's name:

- `hang`: it does not answer; `slowtool`, `bashtool`: it calls a tool that takes five minutes
- `down`: 503 as often as `downs` says
- `gate`: it answers once for each release of `gate`
- `abort`: it aborts its answer as often as `aborts` says
- `bare`: it gives neither routing nor masks; `zeros`: routing that it has not recorded
- `nokey`: it refuses the key, and repeats it
- `short`: it has no log-probability of the last token, or no choice; `high`: one that is above zero; `alien`:
  a mask without the token itself; `second`: another token than the sampled one is the likeliest
- `large`: its chat answer is more than a message of 64 MiB can carry

The routing of position `p` is `row(p)`. Of each generation the answer's tokens are remembered.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tokenizers import Tokenizer

LAYERS, TOP_K, EXPERTS, KEPT = 4, 2, 64, 4
ANSWER = "the answer is 12, done"
BASH = "sleep 301 & setsid sleep 302 & (cd / && exec env -u PWD setsid sleep 303) & sleep 300"


def row(position: int) -> np.ndarray[Any, Any]:
    """uint8 `[LAYERS, TOP_K]`, never all zero."""
    return ((np.arange(LAYERS * TOP_K).reshape(LAYERS, TOP_K) + position) % EXPERTS).astype(np.uint8)


@dataclass
class Generation:
    """One answer: of which conversation, its prompt's and its own ids."""

    conversation: str
    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]
    kept: list[list[int]]


@dataclass
class FakeEngine:
    """`tokenizer` is needed for generations only."""

    tokenizer: Tokenizer | None = None
    url: str = ""
    downs: int = 0
    aborts: int = 0
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """What came for a key, with each request."""
    generations: list[Generation] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request hangs, or a slow tool was called."""
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a hanging request was given up."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(("chat", body))
        if (refusal := await self._trouble(request, body["model"])) is not None:
            return refusal
        messages, tools = body["messages"], body.get("tools") or []
        system = str(messages[0].get("content")) if messages[0]["role"] == "system" else ""
        text, call = self._policy(
            body["model"],
            answered=sum(one["role"] == "tool" for one in messages),
            turns=sum(one["role"] == "assistant" for one in messages),
            calculates=any(tool["function"]["name"].startswith("calc_") for tool in tools),
            is_user="role-playing a USER" in system,
        )
        prompt_tokens = 10 * len(messages)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 5, "total_tokens": prompt_tokens + 5}
        head = {"id": f"chat-{len(self.requests)}", "created": 1, "model": body["model"]}
        calls = [
            {"index": 0, "id": f"call_{len(self.requests)}", "type": "function",
             "function": {"name": call[0], "arguments": json.dumps(call[1])}}
        ] if call else None  # fmt: skip
        finish = self._aborted(body["model"]) or ("tool_calls" if call else "stop")
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        if "large" in body["model"]:
            message["content"] = "x" * (64 << 20)
        if "short" in body["model"]:
            return web.json_response({**head, "object": "chat.completion", "choices": [], "usage": usage})
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for choices, more in (
            ([{"index": 0, "delta": message, "finish_reason": None}], {}),
            ([{"index": 0, "delta": {}, "finish_reason": finish}], {}),
            ([], {"usage": usage}),
        ):
            chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **more}
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(("generate", body))
        if (refusal := await self._trouble(request, body["model"])) is not None:
            return refusal
        assert self.tokenizer is not None
        ids, wanted = body["token_ids"], body["sampling_params"]
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        said, call = self._policy(
            body["model"],
            answered=text.count("<tool_response>"),
            turns=text.count("<|im_start|>assistant") - 1,
            calculates="calc_add" in text,
            is_user="role-playing a USER" in text,
        )
        if call:
            asked = json.dumps({"name": call[0], "arguments": call[1]})
            said += ("\n" if said else "") + f"<tool_call>\n{asked}\n</tool_call>"
        sampled = self.tokenizer.encode(said, add_special_tokens=False).ids
        sampled.append(self.tokenizer.token_to_id("<|im_end|>"))
        choice = self._choice(request.headers["X-Session-ID"], ids, sampled, wanted)
        choice["finish_reason"] = self._aborted(body["model"]) or choice["finish_reason"]
        if "bare" in body["model"]:
            del choice["routed_experts"], choice["sampling_mask"]
        if "zeros" in body["model"]:
            rows = choice["routed_experts"]
            rows["data"] = base64.b64encode(bytes(math.prod(rows["shape"]))).decode()
        self._spoil(body["model"], choice)
        # Without spaces: the client cuts the routing out of the bytes by what stands in front of it.
        answer = {"request_id": f"gen-{len(self.requests)}", "choices": [choice], "prompt_logprobs": None}
        return web.Response(
            body=json.dumps(answer, separators=(",", ":")).encode(), content_type="application/json"
        )

    def _choice(
        self, conversation: str, ids: list[int], sampled: list[int], wanted: dict[str, Any]
    ) -> dict[str, Any]:
        logprobs = [-0.1 - 0.001 * i for i in range(len(sampled))]
        heads = wanted.get("logprobs") or 1
        vocabulary = range(self.tokenizer.get_vocab_size()) if self.tokenizer else range(0)
        content, kept = [], []
        for token, logprob in zip(sampled, logprobs, strict=True):
            others = [other for other in vocabulary if other != token][: KEPT - 1 + heads]
            rest = math.log((1 - math.exp(logprob)) / (KEPT - 1))
            ranked = [(token, logprob)]
            ranked += [(other, rest if i < KEPT - 1 else -9999.0) for i, other in enumerate(others)]
            kept.append([token, *others[: KEPT - 1]])
            content.append(
                {
                    "token": f"token_id:{token}", "logprob": logprob, "bytes": None,
                    "top_logprobs": [{"token": f"token_id:{one}", "logprob": value}
                                     for one, value in ranked[: max(heads, KEPT + 1)]] if heads > 1 else [],
                }
            )  # fmt: skip
        self.generations.append(Generation(conversation, list(ids), sampled, logprobs, kept))
        start = int(wanted.get("routed_experts_prompt_start") or 0)
        rows = np.stack([row(p) for p in range(start, len(ids) + len(sampled) - 1)])
        return {
            "index": 0,
            "token_ids": sampled,
            "logprobs": {"content": content},
            "finish_reason": "stop",
            "routed_experts": {
                "data": base64.b64encode(rows.tobytes()).decode(),
                "shape": list(rows.shape),
                "start": start,
                "dtype": "uint8",
            },
            "sampling_mask": kept,
            "weight_versions": [{"version": "v7", "start": 0, "end": len(sampled)}],
        }

    def _spoil(self, model: str, choice: dict[str, Any]) -> None:
        content = choice["logprobs"]["content"]
        if "short" in model:
            content.pop()
        if "high" in model:
            content[2]["logprob"] = 0.7
        if "alien" in model:
            choice["sampling_mask"][2].pop(0)
        if "second" in model and content[0]["top_logprobs"]:
            for entry in content:
                own, best = entry["top_logprobs"][:2]
                own["logprob"], best["logprob"] = best["logprob"], own["logprob"]
                entry["logprob"] = own["logprob"]

    def _aborted(self, model: str) -> str | None:
        if "abort" not in model or not self.aborts:
            return None
        self.aborts -= 1
        return "abort"

    async def _trouble(self, request: web.Request, model: str) -> web.Response | None:
        self.keys.append(key := request.headers.get("Authorization", "").removeprefix("Bearer "))
        if "nokey" in model:
            return web.json_response({"error": {"message": f"Incorrect API key: {key}"}}, status=401)
        if "down" in model and self.downs:
            self.downs -= 1
            error = {"message": f"engine down {len(self.requests)}", "type": "server_error"}
            return web.json_response({"error": error}, status=503)
        if "gate" in model:
            await self.gate.acquire()
        if "hang" in model:
            self.asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.disconnected.set()
        return None

    def _policy(
        self, model: str, *, answered: int, turns: int, calculates: bool, is_user: bool
    ) -> tuple[str, tuple[str, dict[str, Any]] | None]:
        if is_user:
            return ("###DONE###" if turns >= 2 else f"please give me number, part {turns}"), None
        if re.search("slowtool|bashtool", model) and not answered:
            self.asked.set()
            return "", ("calc_slow", {"seconds": 300}) if "slow" in model else ("bash", {"command": BASH})
        if calculates and answered < 2:
            return ("thinking \U0001f914 about it" if not answered else ""), (
                "calc_add",
                {"a": 5 * answered, "b": 5 + 2 * answered},
            )
        return ANSWER, None


@asynccontextmanager
async def serving_engine(tokenizer: Tokenizer | None = None) -> AsyncIterator[FakeEngine]:
    """An engine that listens."""
    engine = FakeEngine(tokenizer)

    async def models(request: web.Request) -> web.Response:
        listed = [{"id": "m", "object": "model", "max_model_len": 32768}]
        return web.json_response({"object": "list", "data": listed})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_post("/inference/v1/generate", engine.generate)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield engine
    finally:
        await runner.cleanup()

"""The scripted engine: a server in the test's own loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from aiohttp import web

from tests.engine.control import add_control
from tests.engine.faults import Fault, Faults
from tests.engine.log import Outcome, Record, RequestLog
from tests.engine.openai import openai_response, read_openai_chat
from tests.engine.profiles import VLLM_0_33, Profile, Served
from tests.engine.quirks import Quirk
from tests.engine.replies import Asked, Policy, Reply, Script, echo
from tests.engine.sglang import read_sglang_chat, sglang_response
from tests.engine.tokens import Ids
from tests.engine.turn import Turn, sample
from tests.engine.vllm_chat import chat_response, read_chat, shaped
from tests.engine.vllm_completions import completion_response, read_completion
from tests.engine.vllm_generate import derender_response, generate_response, read_generate, render_response
from tests.engine.wanted import RefusedError, Wanted, error_body

if TYPE_CHECKING:
    from types import TracebackType

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
GENERATE = "/inference/v1/generate"
RENDER = f"{CHAT}/render"
DERENDER = f"{CHAT}/derender"
MODELS = "/v1/models"

Body: TypeAlias = Mapping[str, Any]
_Read: TypeAlias = Callable[[Body], tuple[Ids, Wanted]]
_Write: TypeAlias = Callable[[Turn, Wanted, Body, Profile, Served], dict[str, Any]]


class ScriptedEngine:
    """Speaks as the profile's engine does. `async with ScriptedEngine() as engine: engine.url`.

    `reply` is what the model says: a policy, or a list of replies in the order of the requests, after which
    requests are refused. `served` may be replaced at any time. It answers in one thread, so that a turn of
    200k tokens holds up its loop; tests that mind run it in a process of its own (`python -m tests.engine`).
    """

    def __init__(
        self,
        profile: Profile = VLLM_0_33,
        reply: Policy | Sequence[str | Reply] = echo,
        *,
        served: Served | None = None,
        faults: Sequence[Fault] = (),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.profile = profile
        self.served = served or Served()
        self.log = RequestLog()
        self.faults = Faults()
        self.answers = 0
        self.port = port
        self._host = host
        self.say(reply)
        self.faults.add(faults)
        self._runner: web.AppRunner | None = None

    def say(self, reply: Policy | Sequence[str | Reply]) -> None:
        """What the model says from now on."""
        self.reply: Policy = reply if callable(reply) else Script(reply)

    def fail(self, *faults: Fault) -> None:
        """Let these happen to the next requests, each to one."""
        self.faults.add(faults)

    def gate(self, name: str = "gate") -> asyncio.Event:
        """The gate that holds requests up; set it to let them through."""
        return self.faults.gate(name)

    @property
    def root(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return f"http://{self._host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL of the OpenAI endpoints."""
        return f"{self.root}/v1"

    @property
    def requests(self) -> list[Record]:
        """All requests, but those of control."""
        return self.log.records

    @property
    def active(self) -> int:
        """Requests under way."""
        return self.log.count("under way")

    @property
    def disconnected(self) -> int:
        """Requests that the client closed before their end."""
        return self.log.count("disconnected")

    async def until(self, true: Callable[[ScriptedEngine], object]) -> None:
        """Wait for something that is so once a request came or ended: `lambda engine: engine.active == 3`."""
        await self.log.until(lambda: true(self))

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        for path, handler in self._routes().items():
            app.router.add_route("*", path, handler)
        add_control(app, self)
        app.router.add_route("*", "/{rest:.*}", self._plain(_not_found))
        # Whatever a client left behind is cancelled at the end, not waited for.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, self._host, self.port)
        await site.start()
        self._runner = runner
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _routes(self) -> dict[str, Callable[[web.Request], Any]]:
        profile = self.profile
        routes = {MODELS: self._plain(self._models)}
        if profile.family == "openai":
            routes[CHAT] = self._sampling(lambda body: read_openai_chat(body, self.served), openai_response)
        elif profile.family == "sglang":
            routes[CHAT] = self._sampling(lambda body: read_sglang_chat(body, self.served), sglang_response)
        else:
            routes[CHAT] = self._sampling(lambda body: read_chat(body, profile, self.served), chat_response)
            routes[COMPLETIONS] = self._sampling(
                lambda body: read_completion(body, profile, self.served), completion_response
            )
            routes[GENERATE] = self._sampling(
                lambda body: read_generate(body, profile, self.served), generate_response
            )
        if profile.render:
            routes[RENDER] = self._plain(lambda body: render_response(body, profile, self.served))
        if profile.derender:
            routes[DERENDER] = self._plain(lambda body: derender_response(body, profile, self.served))
        return routes

    def _sampling(self, read: _Read, write: _Write) -> Callable[[web.Request], Any]:
        def answer(path: str, body: Body) -> bytes:
            prompt_ids, wanted = read(body)
            said = self.reply(Asked(path, body, prompt_ids, self.answers))
            reply = Reply(said) if isinstance(said, str) else said
            self.answers += 1
            turn = sample(
                prompt_ids, reply, self.served.weights, max_tokens=wanted.max_tokens, stop=wanted.stop
            )
            told = shaped(turn, write(turn, wanted, body, self.profile, self.served))
            return _dump(told, lenient=turn.has(Quirk.LOGPROB_NAN_LITERAL) or turn.has(Quirk.LONE_SURROGATE))

        return self._handler(answer)

    def _plain(self, answer: Callable[[Body], dict[str, Any]]) -> Callable[[web.Request], Any]:
        return self._handler(lambda _path, body: _dump(answer(body)))

    def _handler(self, answer: Callable[[str, Body], bytes]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            record = Record(
                request.method, request.path, dict(request.headers), _json_or_none(await request.read())
            )
            self.log.begin(record)
            outcome: Outcome = "faulted"
            try:
                fault = self.faults.take(request.path)
                await self.faults.wait(fault)
                if fault.kind != "none":
                    return await self.faults.respond(fault, request, self.profile)
                self._admit(record)
                body = answer(request.path, record.body)
                outcome = "answered"
                return web.Response(body=body, content_type="application/json")
            except RefusedError as error:
                outcome = "refused"
                return web.json_response(error_body(self.profile, error), status=error.status)
            except asyncio.CancelledError:
                outcome = "disconnected"
                raise
            finally:
                self.log.end(record, outcome)

        return handle

    def _admit(self, record: Record) -> None:
        if self.served.api_key and record.key != self.served.api_key:
            raise RefusedError("Unauthorized", 401, "AuthenticationError")
        if record.method == "POST" and not isinstance(record.body, dict):
            raise RefusedError("1 validation error: body: JSON decode error")

    def _models(self, _body: Body) -> dict[str, Any]:
        model = {"id": self.served.model, "object": "model", "owned_by": self.profile.family}
        return {"object": "list", "data": [model | {"max_model_len": self.served.max_model_len}]}


def _not_found(_body: Body) -> dict[str, Any]:
    raise RefusedError("Not Found", 404, "NotFoundError")


def _json_or_none(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _dump(told: Any, *, lenient: bool = False) -> bytes:
    """As the engines write JSON: without NaN, and Unicode as it is. `lenient`: NaN, and escapes."""
    try:
        return json.dumps(told, ensure_ascii=lenient, allow_nan=lenient, separators=(",", ":")).encode()
    except ValueError as error:
        raise RefusedError(str(error), 500, "InternalServerError") from error

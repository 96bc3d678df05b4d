"""A real HTTP server on port 0 whose answers are scripted, one for each request, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import pytest
from aiohttp import web

from env_worker.model.engine import Engine
from env_worker.model.retry import TryFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from env_worker.model.http import Connections

BODY: Final = {"model": "m", "text": "héllo 🦜"}
"""What `post` sends."""

Script: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: Any


def says(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    """Answers with JSON."""

    async def script(_: web.Request) -> web.StreamResponse:
        return web.json_response(content, status=status, headers=headers)

    return script


def raw(
    data: bytes, *, status: int = 200, content_type: str = "application/json", location: str = ""
) -> Script:
    """Answers with bytes."""

    async def script(_: web.Request) -> web.StreamResponse:
        headers = {"Location": location} if location else None
        return web.Response(body=data, status=status, content_type=content_type, headers=headers)

    return script


def breaks_off(data: bytes = b"", *, announced: int | None = None) -> Script:
    """Closes the connection after `data`: before any response if there is none, else in mid-body, of which
    `announced` bytes were to come."""

    async def script(request: web.Request) -> web.StreamResponse:
        if data:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = announced
            await response.prepare(request)
            await response.write(data)
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    return script


class Hangs:
    """Does not answer until `open` is set. `began`: a request has come; `left`: its client has gone."""

    def __init__(self, content: object = None) -> None:
        self.content: Final = {} if content is None else content
        self.began: Final = asyncio.Event()
        self.left: Final = asyncio.Event()
        self.open: Final = asyncio.Event()

    async def __call__(self, _: web.Request) -> web.StreamResponse:
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return web.json_response(self.content)


class ScriptedHttp:
    """The server. `requests` are those that came; a request without a script is answered with 418, and a
    script that no request used fails the test when the server stops.

    Args:
        scripts: what is answered, in this order.
        always: answers all further requests.
    """

    def __init__(self, *scripts: Script, always: Script | None = None) -> None:
        self.requests: Final[list[Seen]] = []
        self.url = ""
        self._scripts: Final = deque(scripts)
        self._always: Final = always
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner: Final = web.AppRunner(application, handler_cancellation=True, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        if kind is None:
            assert not self._scripts, f"{len(self._scripts)} scripts were not used"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append(Seen(request.path, request.headers, body))
        if self._scripts:
            return await self._scripts.popleft()(request)
        if self._always is not None:
            return await self._always(request)
        return web.json_response({"error": {"message": "no script for this request"}}, status=418)


async def post(
    engines: Connections, server: ScriptedHttp, path: str = "chat/completions", **fields: Any
) -> Mapping[str, Any]:
    """Post `BODY` to the server, as an engine with these fields."""
    timeout = fields.pop("timeout", 20.0)
    return await engines.post(Engine(server.url, "m", **fields), path, BODY, timeout)


async def failure(engines: Connections, script: Script, **fields: Any) -> TryFailedError:
    """How a request fails that is answered by `script`."""
    async with ScriptedHttp(script) as server:
        with pytest.raises(TryFailedError) as raised:
            await post(engines, server, **fields)
    return raised.value

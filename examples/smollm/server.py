"""The engine's server: the endpoints of vLLM that the worker's dialects ask.

One request after another has the model; others wait, up to `--max-queue` of them. A request that its client
closes ends with the next token.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from aiohttp import web

from examples.smollm.answers import Answers
from examples.smollm.asked import RefusedError
from examples.smollm.generation import generate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from examples.smollm.generation import Generated, Wanted
    from examples.smollm.model import Model

_MOST_BYTES = 16 << 20
"""Of a request."""


class Turns:
    """Lets one request after another have the model, in a thread of its own.

    Args:
        most_waiting: how many may wait at once; further ones are refused with 429.
    """

    def __init__(self, model: Model, *, most_waiting: int = 64) -> None:
        self._model = model
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, "model")
        self._places = threading.BoundedSemaphore(most_waiting + 1)

    async def generate(self, wanted: Wanted) -> Generated:
        """Wait for the model, and generate. Cancelled, it has the model stop at the next token."""
        if not self._places.acquire(blocking=False):
            raise RefusedError(
                f"{self._most_waiting} requests wait for the model already: try again later",
                429,
                "RateLimitError",
            )
        abandoned = threading.Event()
        future: Future[Generated] = self._thread.submit(generate, self._model, wanted, abandoned.is_set)
        future.add_done_callback(lambda _: self._places.release())
        try:
            # A cancel takes the future out of the queue, if it is there still.
            return await asyncio.wrap_future(future)
        finally:
            abandoned.set()

    def close(self) -> None:
        """Wait for the thread. Requests have been cancelled before."""
        self._thread.shutdown(cancel_futures=True)


def application(model: Model, *, name: str, most_waiting: int = 64) -> web.Application:
    """The server's application. Run it with `handler_cancellation=True`, or closed requests go on."""
    answers = Answers(model, name)
    turns = Turns(model, most_waiting=most_waiting)

    def sampling(
        read: Callable[[Mapping[str, Any]], Wanted],
        write: Callable[[Mapping[str, Any], Generated], dict[str, Any]],
    ) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            body = await _body(request)
            return web.json_response(write(body, await turns.generate(read(body))))

        return handle

    def plain(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            return web.json_response(answer(await _body(request)))

        return handle

    async def models(_: web.Request) -> web.Response:
        return web.json_response(answers.models())

    async def close(_: web.Application) -> None:
        await asyncio.to_thread(turns.close)

    app = web.Application(client_max_size=_MOST_BYTES, middlewares=[_errors])
    app.on_cleanup.append(close)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", sampling(answers.read_chat, answers.chat))
    app.router.add_post("/v1/chat/completions/render", plain(answers.render))
    app.router.add_post("/v1/chat/completions/derender", plain(answers.derender))
    app.router.add_post("/inference/v1/generate", sampling(answers.read_generate, answers.generate))
    return app


@web.middleware
async def _errors(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
    """Every error as vLLM writes it."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except RefusedError as refused:
        message, status, kind = str(refused), refused.status, refused.kind
    except web.HTTPException as error:
        message, status, kind = f"{request.method} {request.path}: {error.reason}", error.status, error.reason
    except Exception as error:
        request.app.logger.exception("a request failed")
        message, status, kind = f"{type(error).__name__}: {error}", 500, "InternalServerError"
    told = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": told}, status=status)


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RefusedError(f"the body is {type(body).__name__} in JSON, expected an object")
    return body


async def serve(app: web.Application, host: str, port: int, *, with_stdin: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, and where `with_stdin`, until standard input is closed."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        if with_stdin:
            loop.add_reader(sys.stdin, lambda: None if os.read(0, 4096) else ended.set())
        print(f"listening on http://{host}:{runner.addresses[0][1]}/v1", flush=True)
        await ended.wait()
        if with_stdin:
            loop.remove_reader(sys.stdin)
    finally:
        await runner.cleanup()

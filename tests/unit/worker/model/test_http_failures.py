"""HTTP to engines that fail: what is said of it, and which failures may be tried again."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from env_worker.model.engine import Engine
from env_worker.model.errors import (
    EngineRefusedError,
    EngineUnreachableError,
    MalformedAnswerError,
)
from env_worker.model.http import Connections
from env_worker.model.retry import TryFailedError
from tests.helpers.scripted_http import Hangs, ScriptedHttp, breaks_off, failure, post, raw, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.helpers.scripted_http import Script

KEY = "sk-very-secret-4711"


@pytest.fixture
async def engines() -> AsyncIterator[Connections]:
    made = Connections()
    yield made
    await made.close()


# Failures.


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_refusal_is_final(engines: Connections, status: int) -> None:
    failed = await failure(engines, says({"error": {"message": "too  long\n prompt"}}, status=status))
    assert isinstance(failed.error, EngineRefusedError)
    assert failed.error.status == status
    assert not failed.error.retryable
    said, _, hint = str(failed.error).partition("; ")
    assert said.endswith(f"was answered with status {status}: too long prompt")
    assert bool(hint) == (status in (401, 403, 404))


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("variable", ["", "ENGINE_KEY"])
async def test_a_refusal_of_access_says_whether_a_key_was_sent_and_whose(
    engines: Connections, monkeypatch: pytest.MonkeyPatch, status: int, variable: str
) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    failed = await failure(
        engines, says({"error": f"who is {KEY}? " + "x" * 600}, status=status), key_variable=variable
    )
    hint = str(failed.error).rpartition("; ")[2]
    if variable:
        assert hint == "the key that was sent is that of the worker's variable ENGINE_KEY"
        assert KEY[:8] not in str(failed.error)
    else:
        assert hint.startswith("no key was sent: name the worker's variable that holds one")


async def test_what_is_not_found_may_be_the_base_urls_fault(engines: Connections) -> None:
    async with ScriptedHttp(says({"error": "Not Found"}, status=404)) as server:
        engine = Engine(f"{server.url}/v1", "m", "vllm-chat")
        with pytest.raises(TryFailedError) as raised:
            await engines.post(engine, "chat/completions", {}, 5.0)
    said = str(raised.value.error)
    assert "status 404: Not Found; it has no model 'm', does not speak vllm-chat, or the base URL is" in said
    assert said.endswith("/v1/v1 (most end in /v1, once)")


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504])
async def test_what_may_pass_may_be_tried_again(engines: Connections, status: int) -> None:
    failed = await failure(engines, says({"message": "later"}, status=status, headers={"Retry-After": "7"}))
    assert isinstance(failed.error, EngineRefusedError)
    assert failed.error.status == status
    assert failed.error.retryable
    assert failed.retry_after_seconds == 7
    assert "later" in str(failed.error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>\n Bad   Gateway</html>", "<html> Bad Gateway</html>"),
        (b'{"error": "plain"}', "plain"),
        (b'{"object": "error", "message": "old vLLM"}', "old vLLM"),
        (b'{"detail": [{"loc": ["body"]}]}', '{"detail": [{"loc": ["body"]}]}'),
        (b'{"error": {"message": "\\ud800!"}}', "?!"),
        (b"[" * 5000, "["),
        (b"\xff\xfe", "\ufffd"),
        (b"", ""),
    ],
)
async def test_an_error_says_what_the_engine_said(engines: Connections, body: bytes, words: str) -> None:
    failed = await failure(engines, raw(body, status=500))
    assert f"status 500: {words}" in str(failed.error)
    assert len(str(failed.error)) < 600


@pytest.mark.parametrize(
    "script",
    [
        breaks_off(),
        breaks_off(b'{"half": ', announced=1000),
        breaks_off(b'{"half": '),
        raw(b'{"half": '),
        raw(b""),
        raw(b"<html>sorry</html>", content_type="text/html"),
    ],
    ids=["before", "in a body", "in chunks", "without a length", "empty", "html"],
)
async def test_what_broke_may_be_tried_again(engines: Connections, script: Script) -> None:
    failed = await failure(engines, script)
    assert isinstance(failed.error, EngineUnreachableError | MalformedAnswerError)
    assert failed.error.retryable


async def test_nobody_listens(engines: Connections) -> None:
    async with ScriptedHttp() as server:
        pass
    with pytest.raises(TryFailedError) as raised:
        await post(engines, server)
    assert isinstance(raised.value.error, EngineUnreachableError)
    assert raised.value.error.retryable
    assert f"POST {server.url}/chat/completions found no answer: ConnectError" in str(raised.value.error)


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b"null", b"7"])
async def test_what_is_no_object_is_no_answer(engines: Connections, body: bytes) -> None:
    failed = await failure(engines, raw(body))
    assert isinstance(failed.error, MalformedAnswerError)
    assert not failed.error.retryable


async def test_json_may_be_nested_deeply_or_hold_what_is_no_number(engines: Connections) -> None:
    failed = await failure(engines, raw(b'{"a":' + b"[" * 200_000))
    assert isinstance(failed.error, MalformedAnswerError)
    async with ScriptedHttp(raw(b'{"logprobs": [NaN, -Infinity]}')) as server:
        content = await post(engines, server)
    assert str(content) == "{'logprobs': [nan, -inf]}"


async def test_a_body_that_is_not_json_is_the_callers_fault(engines: Connections) -> None:
    for body in ({"x": float("nan")}, {"x": "\ud800"}, {"x": object()}):
        async with ScriptedHttp() as server:
            with pytest.raises((ValueError, TypeError)):
                await engines.post(Engine(server.url, "m"), "x", body, 20.0)
        assert not server.requests


async def test_a_response_is_bounded_whether_or_not_it_says_its_size() -> None:
    limit = 1000
    engines = Connections(max_response_bytes=limit)

    async def in_chunks(request: web.Request) -> web.StreamResponse:
        streamed = web.StreamResponse()
        await streamed.prepare(request)
        for _ in range(1000):
            await streamed.write(b" " * limit)
        return streamed

    async def zipped(_: web.Request) -> web.StreamResponse:
        return web.Response(body=gzip.compress(b" " * 100_000), headers={"Content-Encoding": "gzip"})

    for script in (raw(b" " * (limit + 1)), in_chunks, zipped):
        failed = await failure(engines, script)
        assert isinstance(failed.error, MalformedAnswerError)
        assert "more than 1000 bytes, the limit" in str(failed.error)
        assert not failed.error.retryable
    async with ScriptedHttp(raw(b"{}" + b" " * (limit - 2))) as server:
        assert await post(engines, server) == {}
    await engines.close()


async def test_an_error_of_any_size_is_bounded(engines: Connections) -> None:
    failed = await failure(engines, raw(b"x" * 10_000_000, status=500))
    assert len(str(failed.error)) < 700
    assert failed.error.status == 500


async def test_a_try_that_takes_too_long_is_broken_off(engines: Connections) -> None:
    hangs = Hangs()
    async with ScriptedHttp(hangs) as server:
        with pytest.raises(TryFailedError) as raised:
            await post(engines, server, timeout=0.05)
        await asyncio.wait_for(hangs.left.wait(), 10)
    assert isinstance(raised.value.error, EngineUnreachableError)
    assert raised.value.error.retryable
    assert "no whole answer in 0.05 s; --model-timeout-seconds" in str(raised.value.error)


async def test_a_body_that_only_drips_takes_too_long_too(engines: Connections) -> None:
    async def drips(request: web.Request) -> web.StreamResponse:
        streamed = web.StreamResponse()
        await streamed.prepare(request)
        while True:
            await streamed.write(b" ")
            await asyncio.sleep(0.01)

    async with ScriptedHttp(always=drips) as server:
        with pytest.raises(TryFailedError) as raised:
            await post(engines, server, timeout=0.2)
    assert isinstance(raised.value.error, EngineUnreachableError)

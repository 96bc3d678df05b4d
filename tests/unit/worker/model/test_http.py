"""HTTP to engines: what is sent, that nothing of the worker leaks, and who shares connections."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.model import http, response
from env_worker.model.errors import (
    EngineError,
    EngineRefusedError,
)
from env_worker.model.http import Connections, close_clients, connections
from env_worker.model.paths import request_url
from env_worker.model.retry import TryFailedError
from tests.helpers.scripted_http import BODY, Hangs, ScriptedHttp, failure, post, raw, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp import web


KEY = "sk-very-secret-4711"


@pytest.fixture
async def engines() -> AsyncIterator[Connections]:
    made = Connections()
    yield made
    await made.close()


async def test_the_body_goes_as_json_and_the_answer_comes_back(engines: Connections) -> None:
    async with ScriptedHttp(says({"text": "ünïcode 🦜", "n": [1, None]})) as server:
        content = await post(engines, server, headers={"X-Session-Id": "7"})
    assert content == {"text": "ünïcode 🦜", "n": [1, None]}
    (seen,) = server.requests
    assert seen.path == "/v1/chat/completions"
    assert seen.body == BODY
    assert seen.headers["X-Session-Id"] == "7"
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["User-Agent"] == "envtrio"


async def test_a_path_of_the_root_is_behind_the_server_and_not_behind_v1(engines: Connections) -> None:
    async with ScriptedHttp(says({})) as server:
        await post(engines, server, "/inference/v1/generate")
    assert server.requests[0].path == "/inference/v1/generate"


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("http://e:8000/v1", "chat/completions", "http://e:8000/v1/chat/completions"),
        ("http://e:8000/v1", "/inference/v1/generate", "http://e:8000/inference/v1/generate"),
        ("http://e:8000", "/inference/v1/generate", "http://e:8000/inference/v1/generate"),
        ("http://gateway/a/v1", "/inference/v1/generate", "http://gateway/a/inference/v1/generate"),
        ("http://gateway/a/v2", "/tokenize", "http://gateway/a/v2/tokenize"),
    ],
)
def test_where_paths_are(base: str, path: str, url: str) -> None:
    assert request_url(base, path) == url


# Keys, and what must not leak.


async def test_the_key_is_read_anew_for_each_request(
    engines: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedHttp(says({}), says({}), says({})) as server:
        monkeypatch.setenv("ENGINE_KEY", KEY)
        await post(engines, server, key_variable="ENGINE_KEY", headers={"authorization": "Bearer other"})
        monkeypatch.setenv("ENGINE_KEY", "another")
        await post(engines, server, key_variable="ENGINE_KEY")
        await post(engines, server, headers={"authorization": "Bearer theirs"})
    sent = [seen.headers["Authorization"] for seen in server.requests]
    assert sent == [f"Bearer {KEY}", "Bearer another", "Bearer theirs"]


async def test_a_key_that_is_not_set_fails_without_a_request(
    engines: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    async with ScriptedHttp() as server:
        with pytest.raises(EngineError, match="ENGINE_KEY of this worker is not set"):
            await post(engines, server, key_variable="ENGINE_KEY")
    assert not server.requests


async def test_nothing_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OPENAI_API_KEY": "leak-key",
        "OPENAI_ADMIN_KEY": "leak-admin",
        "OPENAI_ORG_ID": "leak-org",
        "OPENAI_PROJECT_ID": "leak-project",
        "OPENAI_WEBHOOK_SECRET": "leak-webhook",
        "OPENAI_CUSTOM_HEADERS": "X-Leak: leak-header\nAuthorization: Bearer leak-auth",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/leak",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "socks5://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    engines = Connections()
    async with ScriptedHttp(says({}, headers={"Set-Cookie": "who=you; Path=/"}), says({})) as server:
        await post(engines, server)
        await post(engines, server)
    await engines.close()
    for seen in server.requests:
        assert "leak" not in str(seen.headers)
        assert "Authorization" not in seen.headers
        assert "Cookie" not in seen.headers


async def test_redirects_are_not_followed(engines: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    async with ScriptedHttp() as other:
        failed = await failure(
            engines, raw(b"", status=307, location=f"{other.url}/x"), key_variable="ENGINE_KEY"
        )
    assert not other.requests
    assert isinstance(failed.error, EngineRefusedError)
    assert failed.error.status == 307
    assert not failed.error.retryable
    assert f"redirects are not followed, name the endpoint to which it leads: {other.url}/x" in str(failed)


async def test_neither_keys_nor_long_prompts_are_in_errors_or_logs(
    engines: Connections, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ENGINE_KEY", KEY)
    prompt = "PROMPT" * 1000
    script = says({"error": {"message": f"invalid {KEY}, {'tenant-secret'}: {prompt}"}}, status=400)
    failed = await failure(
        engines, script, key_variable="ENGINE_KEY", headers={"X-Tenant": "tenant-secret", "X-Short": "inv"}
    )
    assert "with status 400: invalid ***, ***: PROMPT" in str(failed.error)
    assert len(str(failed.error)) < 600
    for text in (KEY, "tenant-secret", "PROMPT", "héllo"):
        assert text not in caplog.text


@pytest.mark.parametrize("length", range(440, 530, 3))
async def test_a_key_that_is_cut_with_the_engines_words_is_hidden_too(
    engines: Connections, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    for content in ({"error": {"message": f"{'x' * length} {KEY}"}}, {"x" * length: KEY}):
        failed = await failure(engines, says(content, status=401), key_variable="ENGINE_KEY")
        assert "sk-" not in str(failed.error)


async def test_a_key_with_a_newline_at_its_end_is_sent_without_it(
    engines: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", f"{KEY}\r\n")
    async with ScriptedHttp(says({})) as server:
        await post(engines, server, key_variable="ENGINE_KEY")
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("key", [f"{KEY}\nx", f"{KEY}\u2019"])
async def test_a_key_that_no_header_carries_fails_without_a_word_of_it(
    engines: Connections, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("ENGINE_KEY", key)
    async with ScriptedHttp() as server:
        with pytest.raises(EngineError, match="ENGINE_KEY of this worker holds characters") as raised:
            await post(engines, server, key_variable="ENGINE_KEY")
    assert not server.requests
    assert "sk-" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "headers", [{"x-user": "Zoë-Zoë-Zoë"}, {"content-length": "3"}, {"content-length": "99999"}]
)
async def test_what_cannot_be_sent_is_the_models_failure(
    engines: Connections, headers: dict[str, str]
) -> None:
    """Whatever the HTTP package calls it, and whether it is a ValueError or not."""
    async with ScriptedHttp(always=says({})) as server:
        with pytest.raises(TryFailedError) as raised:
            await post(engines, server, headers=headers)
    assert (type(raised.value.error), raised.value.error.retryable) == (EngineError, False)
    assert "cannot be sent by the HTTP package" in str(raised.value)


# Cancelling, many at once, large ones.


async def test_cancelling_closes_the_request(engines: Connections) -> None:
    hangs = Hangs()
    async with ScriptedHttp(hangs, says({"after": 1})) as server:
        before = asyncio.all_tasks()
        asking = asyncio.create_task(post(engines, server))
        await asyncio.wait_for(hangs.began.wait(), 10)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(hangs.left.wait(), 10)
        assert await post(engines, server) == {"after": 1}
        assert {task for task in asyncio.all_tasks() - before if "Connections" in repr(task)} == set()


async def test_many_are_asked_at_once(engines: Connections) -> None:
    count = 120
    hangs = Hangs({"ok": True})
    arrived = asyncio.Event()

    async def all_at_once(request: web.Request) -> web.StreamResponse:
        if len(server.requests) == count:
            arrived.set()
        return await hangs(request)

    async with ScriptedHttp(always=all_at_once) as server:
        asking = [asyncio.create_task(post(engines, server)) for _ in range(count)]
        await asyncio.wait_for(arrived.wait(), 20)  # none waits for another's answer
        hangs.open.set()
        replies = await asyncio.gather(*asking)
        assert replies == [{"ok": True}] * count


async def test_large_answers_are_decoded_in_a_thread(
    engines: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(data: bytearray) -> Mapping[str, Any]:
        threads.append(threading.current_thread().name)
        return response.decoded(data)

    monkeypatch.setattr(http, "decoded", noted)
    large = json.dumps({"x": "y" * response.LARGE_BYTES}).encode()
    async with ScriptedHttp(raw(large), raw(b"{}")) as server:
        assert len((await post(engines, server))["x"]) == response.LARGE_BYTES
        await post(engines, server)
    assert threads[0].startswith("engine-json")
    assert threads[1] == threading.current_thread().name


async def test_of_large_answers_only_the_bytes_of_candidates_are_left_out(engines: Connections) -> None:
    candidate = {"token": "token_id:5", "logprob": -0.5, "bytes": [53]}
    content = [{**candidate, "top_logprobs": [candidate, {**candidate, "bytes": None}]}] * 2000
    told = {"content": content, "bytes": [1], "arguments": {"bytes": [2], "token": "x", "n": 1}}
    async with ScriptedHttp(says(told)) as server:
        got = await post(engines, server)
    lean = {"token": "token_id:5", "logprob": -0.5}
    assert got == {**told, "content": [{**lean, "top_logprobs": [lean, lean]}] * 2000}


# One for each loop.


async def test_connections_are_shared_in_a_loop_until_they_are_closed() -> None:
    first = connections()
    assert connections() is first
    async with ScriptedHttp(says({})) as server:
        await post(first, server)
    await close_clients()
    second = connections()
    assert second is not first
    await close_clients()
    await close_clients()


def test_each_loop_has_its_own() -> None:
    async def own() -> Connections:
        found = connections()
        async with ScriptedHttp(says({})) as server:
            await post(found, server)
        await close_clients()
        return found

    assert asyncio.run(own()) is not asyncio.run(own())


def test_the_package_is_imported_only_when_it_is_needed() -> None:
    code = "import env_worker.model.engine_model, sys; assert 'openai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)

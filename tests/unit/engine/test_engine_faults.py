"""The scripted engine fails as it is told, and knows what became of each request."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import fields
from typing import Any

import aiohttp
import pytest

from tests.engine import OPENAI, Fault, ScriptedEngine, held, redirected, refused, slow
from tests.engine.__main__ import CONTROL, EXAMPLE
from tests.engine.control import KNOWN_ORDERS
from tests.engine.replies import Reply

BODY = {"messages": [{"role": "user", "content": "hi"}]}


async def chat(session: aiohttp.ClientSession, url: str, body: Any = BODY) -> tuple[int, str, str]:
    """Status, Retry-After or Location, and the text."""
    async with session.post(f"{url}/chat/completions", json=body, allow_redirects=False) as response:
        headers = response.headers
        return response.status, headers.get("Retry-After", headers.get("Location", "")), await response.text()


@pytest.mark.parametrize(
    ("fault", "status", "header", "begins"),
    [
        (refused(429, "2"), 429, "2", '{"error": {"message": "scripted", "type": "RateLimitError"'),
        (refused(429), 429, "", '{"error"'),
        (refused(500), 500, "", '{"error"'),
        (refused(503, "Wed, 21 Oct 2015 07:28:00 GMT"), 503, "Wed, 21 Oct 2015 07:28:00 GMT", '{"error"'),
        (refused(400, message="too long"), 400, "", '{"error": {"message": "too long"'),
        (Fault("html", status=502), 502, "", "<html>"),
        (redirected("http://elsewhere.invalid/v1"), 302, "http://elsewhere.invalid/v1", ""),
        (Fault("not-json"), 200, "", '{"id": "chatcmpl-half"'),
        (Fault("array"), 200, "", "[{"),
        (Fault("empty"), 200, "", ""),
        (slow(0.01), 200, "", '{"id":"chatcmpl-'),
    ],
)
async def test_a_fault_happens_to_one_request(
    session: aiohttp.ClientSession, fault: Fault, status: int, header: str, begins: str
) -> None:
    async with ScriptedEngine(faults=[fault]) as engine:
        told = await chat(session, engine.url)
        assert told[:2] == (status, header)
        assert told[2].startswith(begins)
        assert (await chat(session, engine.url))[0] == 200
        assert not engine.faults.queue


@pytest.mark.parametrize("kind", ["dropped", "broken"])
async def test_connections_are_cut(session: aiohttp.ClientSession, kind: Any) -> None:
    async with ScriptedEngine(faults=[Fault(kind)]) as engine:
        with pytest.raises(aiohttp.ClientError):
            await chat(session, engine.url)
        assert (await chat(session, engine.url))[0] == 200
        await engine.until(lambda engine: not engine.active)
        assert [record.outcome for record in engine.requests] == ["faulted", "answered"]


async def test_a_fault_waits_for_its_path(session: aiohttp.ClientSession) -> None:
    async with ScriptedEngine(faults=[refused(500, path="/render"), refused(429)]) as engine:
        assert (await chat(session, engine.url))[0] == 429
        assert (await chat(session, engine.url))[0] == 200
        async with session.post(f"{engine.url}/chat/completions/render", json=BODY) as response:
            assert response.status == 500


@pytest.mark.parametrize("fault", [held(), Fault("stalled", gate="gate")], ids=["no byte", "half a body"])
async def test_a_client_that_goes_is_seen(session: aiohttp.ClientSession, fault: Fault) -> None:
    async with ScriptedEngine(faults=[fault, held()]) as engine:
        asking = asyncio.create_task(chat(session, engine.url))
        await engine.until(lambda engine: engine.active == 1)
        asking.cancel()
        await engine.until(lambda engine: engine.disconnected == 1)
        assert engine.active == 0
        waiting = asyncio.create_task(chat(session, engine.url))
        await engine.until(lambda engine: engine.active == 1)
        engine.gate().set()
        assert (await waiting)[0] == 200


async def test_the_engine_ends_with_requests_under_way(session: aiohttp.ClientSession) -> None:
    async with ScriptedEngine(faults=[held()]) as engine:
        asking = asyncio.create_task(chat(session, engine.url))
        await engine.until(lambda engine: engine.active == 1)
    with pytest.raises(aiohttp.ClientError):
        await asking


async def test_requests_are_logged(session: aiohttp.ClientSession) -> None:
    async with ScriptedEngine(OPENAI) as engine:
        headers = {"Authorization": "Bearer secret", "X-Session": "7"}
        async with session.post(f"{engine.url}/chat/completions", json=BODY, headers=headers):
            pass
        async with session.get(f"{engine.url}/models") as response:
            models = await response.json()
    record = engine.log.of("/chat/completions")[0]
    assert (record.key, record.headers["X-Session"], record.body) == ("secret", "7", BODY)
    assert models["data"][0]["id"] == "scripted"


async def test_an_engine_in_a_process_of_its_own(session: aiohttp.ClientSession) -> None:
    arguments = ["-m", "tests.engine", "--profile", "sglang-0.5.23", "--model", "tiny", "--experts", "300"]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        control = f"{url.removesuffix('/v1')}/control"
        orders = {"script": ["one", {"tokens": 50, "quirks": ["usage-wrong"]}], "fail": [{"kind": "status"}]}
        async with session.post(control, json=orders) as response:
            assert response.status == 200
        async with session.post(control, json={"scripts": []}) as response:
            assert response.status == 400
        answers = [await chat(session, url, BODY | {"model": "tiny"}) for _ in range(3)]
        async with session.post(control, json={"fail": [{"kind": "statu"}]}) as response:
            assert (response.status, "status, html" in await response.text()) == (400, True)
        async with session.get(control) as response:
            state = await response.json()
    finally:
        process.terminate()
        assert await process.wait() == 0
    assert [status for status, _, _ in answers] == [500, 200, 200]
    assert json.loads(answers[2][2])["usage"]["completion_tokens"] == 51
    assert (state["answers"], state["active"], len(state["requests"])) == (2, 0, 3)


async def test_what_the_help_says_of_control_is_so(session: aiohttp.ClientSession) -> None:
    async with ScriptedEngine() as engine:
        async with session.post(f"{engine.root}/control", data=EXAMPLE) as response:
            assert response.status == 200
        assert (await chat(session, engine.url))[:2] == (429, "1")
        with pytest.raises(aiohttp.ClientPayloadError):
            await chat(session, engine.url)
    told = set(re.findall(r"^  (\w+)  ", CONTROL, re.MULTILINE))
    assert told == KNOWN_ORDERS
    keys = {field.name for kind in (Fault, Reply) for field in fields(kind)} - {"ends", "edit"}
    assert keys < set(re.findall(r'"(\w+)"', CONTROL))

"""Which engines a run may ask, and who gets which key: refused where not, and never told to anybody."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from env_client import EnvError
from env_client.request import Endpoint
from tests.engine import Record, ScriptedEngine, Served, refused
from tests.helpers.engine_pool import EnginePool, engine_pool, task_of, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWN_KEY: Final = "sk-own-0123456789abcdef"
OTHER_KEY: Final = "sk-other-0123456789abcdef"
UNLISTED_KEY: Final = "sk-unlisted-0123456789abcdef"
KEYS: Final = (OWN_KEY, OTHER_KEY, UNLISTED_KEY)
PROMPT: Final = "the prompt that nobody but the engine may see"
TASK: Final = task_of([user(PROMPT)])


@pytest.fixture(scope="module")
async def own() -> AsyncIterator[ScriptedEngine]:
    """The engine of the worker's operator, which wants a key."""
    async with ScriptedEngine(served=Served(api_key=OWN_KEY)) as engine:
        yield engine


@pytest.fixture(scope="module")
async def other() -> AsyncIterator[ScriptedEngine]:
    """Another one, that runs may name."""
    async with ScriptedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
async def unlisted() -> AsyncIterator[ScriptedEngine]:
    """One that they may not."""
    async with ScriptedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
async def pool(own: ScriptedEngine, other: ScriptedEngine) -> AsyncIterator[EnginePool]:
    variables = {
        "ENV_WORKER_MODEL_URL": own.url,
        "ENV_WORKER_MODEL_KEY_VARIABLE": "OWN_ENGINE_KEY",
        "ENV_WORKER_MODEL_DIALECT": "vllm-chat",
        "ENV_WORKER_ALLOW_ENDPOINT": other.url,
        "ENV_WORKER_ALLOW_KEY_VARIABLE": "OTHER_ENGINE_KEY,UNSET_ENGINE_KEY",
        "OWN_ENGINE_KEY": OWN_KEY,
        "OTHER_ENGINE_KEY": f"{OTHER_KEY}\n",  # as a file has it
        "UNLISTED_ENGINE_KEY": UNLISTED_KEY,
        # What the openai package would take by itself.
        "OPENAI_API_KEY": UNLISTED_KEY,
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_ORG_ID": UNLISTED_KEY,
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    async with engine_pool("--log-level", "debug", **variables) as pool:
        yield pool


async def ask(pool: EnginePool, engine: ScriptedEngine, **arguments: Any) -> Record:
    """A run that is well; the one request that came to `engine` of it."""
    before = len(engine.requests)
    episode = await pool.client.run(TASK, **arguments)
    assert episode.head.ok, episode.head.errors
    [record] = engine.requests[before:]
    assert PROMPT in str(record.body)
    assert not any(key.encode() in episode.SerializeToString() for key in KEYS)
    return record


async def test_each_engine_gets_its_own_key_and_no_other(
    pool: EnginePool, own: ScriptedEngine, other: ScriptedEngine
) -> None:
    assert (await ask(pool, own)).key == OWN_KEY
    assert (await ask(pool, own, endpoint=own.url)).key == OWN_KEY
    assert (await ask(pool, own, endpoint=Endpoint(own.url, key_variable="OWN_ENGINE_KEY"))).key == OWN_KEY
    without = await ask(pool, other, endpoint=other.url)
    assert "Authorization" not in without.headers
    assert not any(key in str(without.headers) for key in KEYS)
    named = await ask(pool, other, endpoint=Endpoint(other.url, key_variable="OTHER_ENGINE_KEY"))
    assert named.key == OTHER_KEY


async def test_headers_of_the_run_reach_its_engine(pool: EnginePool, other: ScriptedEngine) -> None:
    record = await ask(pool, other, endpoint=Endpoint(other.url, headers={"x-tenant": "seven"}))
    assert record.headers["x-tenant"] == "seven"


@pytest.mark.parametrize(
    ("field", "endpoint"),
    [
        ("model.url", Endpoint("unlisted")),
        ("model.url", Endpoint("http://127.0.0.1:9/v1")),
        ("model.url", Endpoint("http://169.254.169.254/latest")),
        ("model.api_key_variable", Endpoint("other", key_variable="UNLISTED_ENGINE_KEY")),
        ("model.api_key_variable", Endpoint("other", key_variable="UNSET_ENGINE_KEY")),
        ("model.api_key_variable", Endpoint("other", key_variable="PATH")),
        ("model.dialect", Endpoint("other", dialect="vllm-speech")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.url} {value.key_variable}{value.dialect}",
)
async def test_what_is_not_on_the_lists_is_refused_and_reaches_no_engine(
    pool: EnginePool,
    own: ScriptedEngine,
    other: ScriptedEngine,
    unlisted: ScriptedEngine,
    field: str,
    endpoint: Endpoint,
) -> None:
    engines = {"other": other, "unlisted": unlisted}
    url = engines[endpoint.url].url if endpoint.url in engines else endpoint.url
    before = len(own.requests) + len(other.requests)
    with pytest.raises(EnvError) as raised:
        await pool.client.run(TASK, endpoint=Endpoint(url, endpoint.dialect, {}, endpoint.key_variable))
    error = raised.value
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "ENDPOINT_NOT_ALLOWED")
    assert error.metadata["field"] == field
    assert not any(key in str(error) for key in KEYS)
    assert len(own.requests) + len(other.requests) == before
    assert not unlisted.requests


async def test_an_engine_that_repeats_the_key_is_not_quoted(pool: EnginePool, own: ScriptedEngine) -> None:
    own.fail(refused(401, message=f"the key {OWN_KEY} is wrong"))
    episode = await pool.client.run(TASK)
    [error] = episode.head.errors
    assert (error.type, error.phase) == ("EngineRefusedError", "model")
    assert "status 401: the key *** is wrong" in error.message
    assert OWN_KEY.encode() not in episode.SerializeToString()


async def test_the_logs_have_neither_keys_nor_prompts(pool: EnginePool, own: ScriptedEngine) -> None:
    """With all that they say at the level for debugging, of runs that go well, fail and are refused."""
    own.fail(refused(503), refused(503))
    await pool.client.run(TASK)
    own.fail(refused(400, message=f"cannot read {PROMPT} of {OWN_KEY}"))
    await asyncio.gather(
        pool.client.run(TASK),
        pool.client.run(TASK, endpoint="http://127.0.0.1:9/v1"),
        return_exceptions=True,
    )
    await pool.broker.said("EngineRefusedError")
    log = "\n".join(pool.broker.log)
    assert "status=400; the engine's words are not logged" in log
    assert PROMPT not in log
    assert not any(key in log for key in KEYS)

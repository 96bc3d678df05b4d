"""Engines that fail, by way of broker and worker: every try is told, and no failure becomes a reward."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from env_client import arrays, check_episode
from tests.engine import PROFILES, Fault, Reply, ScriptedEngine, held, redirected, refused
from tests.helpers.engine_pool import EnginePool, engine_pool, task_of, user
from tests.helpers.engine_witness import Witness, answers_of, assert_arrays, assert_tokens, only_trace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from envtrio.v1.episode_pb2 import Episode

    from tests.engine import Record

REFUSED, UNREACHABLE, MALFORMED = "EngineRefusedError", "EngineUnreachableError", "MalformedAnswerError"
RETRIES = 2
TIMEOUT_SECONDS = 3.0
TASK = task_of([user("one")], [user("two")])

MENDED: dict[str, list[tuple[Fault, str, str]]] = {
    "too many requests": [(refused(429, "1", "slow down"), REFUSED, "status 429: slow down")],
    "internal error": [(refused(500), REFUSED, "status 500")],
    "unavailable": [(refused(503), REFUSED, "status 503")],
    "bad gateway's page": [(Fault("html", status=502), REFUSED, "Bad Gateway")],
    "a page with status 200": [(Fault("html", status=200), MALFORMED, "not JSON")],
    "dropped": [(Fault("dropped"), UNREACHABLE, "found no answer")],
    "broken in mid-body": [(Fault("broken"), UNREACHABLE, "broke off")],
    "cut, and said to be whole": [(Fault("not-json"), MALFORMED, "not JSON")],
    "empty": [(Fault("empty"), MALFORMED, "not JSON")],
    "too late": [(held(), UNREACHABLE, "--model-timeout-seconds")],
    "stalled in mid-body": [(Fault("stalled", gate="never"), UNREACHABLE, "--model-timeout-seconds")],
    "one after the other": [
        (Fault("dropped"), UNREACHABLE, "found no answer"),
        (refused(503), REFUSED, "status 503"),
    ],
}
"""Faults of the second turn's first tries, and the error of each; the next try is answered."""
FINAL: dict[str, list[tuple[Fault, str, str]]] = {
    "bad request": [(refused(400, message="too long 📏"), REFUSED, "status 400: too long 📏")],
    "no such model": [(refused(404), REFUSED, "status 404")],
    "an array": [(Fault("array"), MALFORMED, "list instead of an object")],
    "redirected": [(redirected("http://127.0.0.1:9/v1"), REFUSED, "redirects are not followed")],
    "down": [(refused(500), REFUSED, "status 500")] * (RETRIES + 1),
    "dropped each time": [(Fault("dropped"), UNREACHABLE, "found no answer")] * (RETRIES + 1),
}
"""Faults after which the turn is given up."""


class Played(NamedTuple):
    """What came of a fault."""

    episode: Episode
    witness: Witness
    requests: list[Record]


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    variables = {
        "ENV_WORKER_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
        "ENV_WORKER_MODEL_RETRIES": str(RETRIES),
    }
    async with engine_pool(**variables) as pool:
        yield pool


async def play(pool: EnginePool, faults: Sequence[Fault], dialect: str = "vllm-chat") -> Played:
    """Two turns; the faults come after the first request."""
    witness = Witness(["first", "second"])
    async with ScriptedEngine(PROFILES["vllm-0.33"], witness, faults=faults) as engine:
        episode = await pool.play(engine, dialect, TASK)
        await engine.until(lambda engine: not engine.active)
    return Played(episode, witness, list(engine.requests))


@pytest.fixture(scope="module")
async def played(pool: EnginePool) -> dict[str, Played]:
    """All at once, since most of the time they wait."""
    tables = {**MENDED, **FINAL}
    runs = (play(pool, [Fault(), *(fault for fault, _, _ in rows)]) for rows in tables.values())
    return dict(zip(tables, await asyncio.gather(*runs), strict=True))


def assert_tries(calls: Sequence[Any], rows: Sequence[tuple[Fault, str, str]]) -> None:
    """Each of these calls is a try that failed by its row."""
    assert [call.attempt for call in calls] == list(range(1, len(rows) + 1))
    for call, (_, kind, words) in zip(calls, rows, strict=True):
        assert not call.HasField("node")
        assert (call.error.type, call.error.phase) == (kind, "model")
        assert words in call.error.message
        assert call.endpoint.endswith("/v1/chat/completions")


@pytest.mark.parametrize("name", MENDED)
async def test_what_is_tried_again_is_one_turn_at_the_end(
    pool: EnginePool, played: dict[str, Played], name: str
) -> None:
    episode, witness, requests = played[name]
    rows = MENDED[name]
    check_episode(episode)
    assert episode.head.ok
    assert not episode.head.errors
    assert arrays.episode_reward(episode) == 1.0
    trace = only_trace(episode)
    assert len(trace.nodes) == 4
    assert_tokens(trace, witness.heard)
    await assert_arrays(pool.trainer, trace, witness.heard, ["sampling_mask"])
    before, *failed, after = trace.calls
    assert (before.node, before.attempt, before.HasField("error")) == (1, 1, False)
    assert_tries(failed, rows)
    assert (after.node, after.attempt, after.HasField("error")) == (3, len(rows) + 1, False)
    assert len(requests) == 2 + len(rows)
    assert len({str(request.body) for request in requests[1:]}) == 1


async def test_the_engine_is_left_alone_as_long_as_it_asks(played: dict[str, Played]) -> None:
    _, failed, after = only_trace(played["too many requests"].episode).calls
    paused = after.started_at.ToNanoseconds() - failed.started_at.ToNanoseconds()
    assert (
        paused - failed.duration.ToNanoseconds() >= 0.99e9
    )  # a pause of its own would be half a second at most


@pytest.mark.parametrize("name", FINAL)
async def test_what_is_given_up_is_no_reward(pool: EnginePool, played: dict[str, Played], name: str) -> None:
    episode, witness, requests = played[name]
    rows = FINAL[name]
    check_episode(episode)
    assert not episode.head.ok
    [error] = episode.head.errors
    assert (error.type, error.phase) == (rows[-1][1], "model")
    assert rows[-1][2] in error.message
    trace = only_trace(episode)
    assert not trace.rewards
    assert arrays.episode_reward(episode) is None
    # The turn before is whole, and nothing of the one that failed is there.
    assert answers_of(trace) == [1]
    assert_tokens(trace, witness.heard)
    await assert_arrays(pool.trainer, trace, witness.heard, ["sampling_mask"])
    assert_tries(trace.calls[1:], rows)
    assert len(requests) == 1 + len(rows)


@pytest.mark.parametrize("dialect", ["vllm-chat", "vllm-generate"])
async def test_an_answer_that_the_engine_gave_up_is_none(pool: EnginePool, dialect: str) -> None:
    """It comes with status 200, as an answer does, and would be scored like a wrong one."""
    given_up = Reply("half", finish_reason="abort")
    mended: list[str | Reply] = ["first", given_up, "second"]
    given_up_each_time: list[str | Reply] = ["first", *[given_up] * (RETRIES + 1)]
    for replies in (mended, given_up_each_time):
        witness = Witness(replies)
        async with ScriptedEngine(PROFILES["vllm-0.33"], witness) as engine:
            episode = await pool.play(engine, dialect, TASK)
        check_episode(episode)
        trace = only_trace(episode)
        failed = [call.error for call in trace.calls if not call.HasField("node")]
        assert {(error.type, error.phase) for error in failed} == {("EngineAbortedError", "model")}
        assert len(failed) == replies.count(given_up)
        assert "half" not in str(trace)
        witness.heard = [heard for heard in witness.heard if bytes(heard.sampled[:4].tolist()) != b"half"]
        assert_tokens(trace, witness.heard)
        if replies is mended:
            assert episode.head.ok
            assert arrays.episode_reward(episode) == 1.0
        else:
            assert [(error.type, error.phase) for error in episode.head.errors] == [
                ("EngineAbortedError", "model")
            ]
            assert not trace.rewards
            assert arrays.episode_reward(episode) is None


async def test_failures_of_engine_tool_and_environment_are_told_apart(pool: EnginePool) -> None:
    async with ScriptedEngine(reply=lambda _asked: "yes") as engine:
        tasks = [task_of([user("one")], fails=fails) for fails in ("tool", "environment")]
        ended = await asyncio.gather(*(pool.play(engine, "vllm-chat", task) for task in tasks))
        engine.fail(refused(400))
        ended.append(await pool.play(engine, "vllm-chat", tasks[0]))
        engine.fail(refused(400))
        forgiven = await pool.play(engine, "vllm-chat", task_of([user("one")], forgives=True))
    told = [[(error.type, error.phase) for error in episode.head.errors] for episode in ended]
    assert told == [
        [("ToolError", "tool")],
        [("RuleBrokenError", "environment")],
        [("EngineRefusedError", "model")],
    ]
    for episode in ended:
        check_episode(episode)
        assert not episode.head.ok
        assert not only_trace(episode).rewards
        assert arrays.episode_reward(episode) is None
    assert forgiven.head.ok
    assert arrays.episode_reward(forgiven) is None
    [call] = only_trace(forgiven).calls
    assert (call.error.type, call.error.phase) == ("EngineRefusedError", "model")


async def test_what_no_answer_can_be_made_of_is_the_models_failure(pool: EnginePool) -> None:
    """A body without choices, and one whose values are no chat message, are not asked for again."""
    strange: list[dict[str, Any]] = [
        {"choices": []},
        {"choices": [{"message": {"role": "assistant", "content": 7}}]},
        {"error": {"message": "out of memory"}},
    ]

    async def ask(body: dict[str, Any]) -> None:
        async with ScriptedEngine(reply=[Reply("x", edit=lambda _told: body)]) as engine:
            episode = await pool.play(engine, "vllm-chat", task_of([user("one")]))
            assert len(engine.requests) == 1
        [error] = episode.head.errors
        assert (error.type, error.phase) == (MALFORMED, "model")
        trace = only_trace(episode)
        assert not trace.nodes
        assert not trace.rewards
        assert [call.error.type for call in trace.calls] == [MALFORMED]

    await asyncio.gather(*map(ask, strange))


async def test_each_request_of_a_turn_by_generate_is_tried_again(pool: EnginePool) -> None:
    witness = Witness(["first", "second"])
    faults = [
        refused(503, path="/render"),
        Fault("dropped", path="/generate"),
        refused(500, path="/derender"),
    ]
    async with ScriptedEngine(PROFILES["vllm-0.33"], witness, faults=faults) as engine:
        episode = await pool.play(engine, "vllm-generate", TASK)
        root = engine.root
    assert episode.head.ok
    trace = only_trace(episode)
    assert_tokens(trace, witness.heard)
    told = [
        (call.endpoint.removeprefix(root), call.attempt, call.node if call.HasField("node") else None)
        for call in trace.calls
    ]
    assert told == [
        ("/v1/chat/completions/render", 1, None),
        ("/inference/v1/generate", 1, None),
        ("/v1/chat/completions/derender", 1, None),
        ("/inference/v1/generate", 2, 1),
        ("/inference/v1/generate", 1, 3),
    ]

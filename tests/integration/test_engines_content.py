"""What people and models write crosses to the engine and comes back equal, however odd it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from env_client import arrays, check_episode
from env_worker.domain import ImagePart, JsonPart, Message, TextPart, ToolCall
from tests.engine import IM_END, PROFILES, Quirk, Reply, ScriptedEngine, Served
from tests.helpers.engine_pool import SAMPLING, EnginePool, engine_pool, task_of, user
from tests.helpers.engine_witness import (
    Witness,
    answers_of,
    assert_arrays,
    assert_messages,
    assert_tokens,
    only_trace,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from envtrio.v1.episode_pb2 import Trace

CHATS: Final = (
    ("vllm-0.13", "vllm-chat"),
    ("vllm-0.33", "vllm-chat"),
    ("vllm-0.33", "vllm-generate"),
    ("sglang-0.5.23", "sglang-chat"),
    ("openai", "openai-chat"),
)
ENGINES: Final = (*CHATS, ("vllm-0.33", "vllm-completions"))
ODD: Final = "日本語 עברית 👩‍👩‍👧‍👦 é e\u0301 \u2028 \ufffd \x00 \x1b[0m \U0010ffff <b>&amp;</b> \\u0041 {}"
TOOL: Final = {"type": "function", "function": {"name": "数える", "parameters": {"type": "object"}}}
CALLS: Final[tuple[tuple[str, str], ...]] = (
    ("数える", '{"of": "🐈'),
    ("数える", ""),
    ("数える", "[1, 2"),
    ("数える", '{"a": "\\u00e9"}'),
)
PARTS: Final[list[dict[str, Any]]] = [
    {"type": "text", "text": "What is this? 🤔"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    {"type": "image_url", "image_url": {"url": "https://example.org/cat.png", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
]


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    async with engine_pool() as pool:
        yield pool


def sampling_of(dialect: str, **more: Any) -> dict[str, Any]:
    """What the API knows of the usual parameters, and some more."""
    return {**({} if dialect == "openai-chat" else SAMPLING), **more}


def assert_whole(trace: Trace, witness: Witness) -> None:
    """Token ids are the engine's, if it tells any."""
    if trace.calls[0].dialect == "openai-chat":
        assert not any(node.token_ids for node in trace.nodes)
    else:
        assert_tokens(trace, witness.heard)


@pytest.mark.parametrize(("profile", "dialect"), CHATS)
async def test_a_conversation_of_everything_odd(pool: EnginePool, profile: str, dialect: str) -> None:
    """Images, audio, reasoning, tool calls that are no JSON, an empty answer, and any Unicode."""
    replies = (Reply(ODD, reasoning="思考 🧠"), Reply(calls=CALLS), Reply(), Reply(reasoning="only this"))
    witness = Witness(replies)
    served = Served(sampling_mask=profile != "openai")
    async with ScriptedEngine(PROFILES[profile], witness, served=served) as engine:
        task = task_of(
            [{"role": "system", "content": ODD}, user(PARTS)],
            [user(ODD)],
            ["results"],
            [{"role": "user", "content": "who?", "name": "Zoë"}],
            tools=[TOOL],
        )
        episode = await pool.play(engine, dialect, task, sampling=sampling_of(dialect))
    check_episode(episode)
    assert episode.head.ok, episode.head.errors
    trace = only_trace(episode)
    [path] = arrays.branches(trace)
    ids = [call.id for call in trace.nodes[path[4]].message.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(CALLS)
    calls = [ToolCall(call, *given) for call, given in zip(ids, CALLS, strict=True)]
    results = [Message.tool(f"数える has heard {call.arguments}", call.id) for call in calls]
    messages = [
        Message.system(ODD),
        Message.user(
            (
                TextPart("What is this? 🤔"),
                ImagePart("data:image/png;base64,iVBORw0KGgo="),
                *(JsonPart(part_json(part)) for part in PARTS[2:]),
            )
        ),
        # OpenAI's API has no place for reasoning.
        Message.assistant(ODD, reasoning="" if profile == "openai" else "思考 🧠"),
        Message.user(ODD),
        Message.assistant(tool_calls=calls),
        *results,
        Message.assistant(),
        Message.user("who?", name="Zoë"),
        Message.assistant(reasoning="" if profile == "openai" else "only this"),
    ]
    assert_messages(trace, path, messages)
    *_, last = engine.log.of("/render" if dialect == "vllm-generate" else "/chat/completions")
    assert [Message.from_openai(message) for message in last.body["messages"]] == messages[:-1]
    assert last.body["messages"][1]["content"] == PARTS
    assert_whole(trace, witness)


def part_json(part: dict[str, Any]) -> str:
    """A part as messages keep it that know no name for it."""
    kept = Message.from_openai(user([part])).content[0]
    assert isinstance(kept, JsonPart)
    return kept.json


@pytest.mark.parametrize(("profile", "dialect"), ENGINES)
async def test_an_answer_that_is_cut_within_an_emoji(pool: EnginePool, profile: str, dialect: str) -> None:
    """Text has a replacement character there, token ids are those that were sampled."""
    witness = Witness(lambda _asked: "cat 🐈 and 🐕")
    async with ScriptedEngine(PROFILES[profile], witness) as engine:
        episode = await pool.play(
            engine,
            dialect,
            task_of([user("one")], [user("two")]),
            sampling=sampling_of(dialect, max_tokens=6),
        )
    check_episode(episode)
    assert episode.head.ok
    trace = only_trace(episode)
    texts = [trace.nodes[index].message.content[0].text for index in answers_of(trace)]
    assert texts == ["cat \ufffd"] * 2
    assert [call.finish_reason for call in trace.calls] == ["length"] * 2
    assert_whole(trace, witness)
    assert [turn.sampled.tolist() for turn in witness.heard] == [list("cat 🐈".encode()[:6])] * 2


@pytest.mark.parametrize(("profile", "dialect"), ENGINES)
async def test_answers_without_a_token_or_without_a_text(
    pool: EnginePool, profile: str, dialect: str
) -> None:
    witness = Witness([Reply(ids=()), Reply(ids=(IM_END,))])
    served = Served(sampling_mask=profile != "openai")
    async with ScriptedEngine(PROFILES[profile], witness, served=served) as engine:
        task = task_of([user("one")], [user("two")])
        episode = await pool.play(engine, dialect, task, sampling=sampling_of(dialect))
    check_episode(episode)
    assert episode.head.ok, episode.head.errors
    trace = only_trace(episode)
    assert [call.finish_reason for call in trace.calls] == ["stop", "stop"]
    assert_messages(
        trace,
        arrays.branches(trace)[-1],
        [Message.user("one"), Message.assistant(), Message.user("two"), Message.assistant()],
    )
    if dialect != "openai-chat":
        found = [arrays.branch_token_ids(trace, index) for index in answers_of(trace)]
        assert all(np.array_equal(ids, turn.ids) for ids, turn in zip(found, witness.heard, strict=True))


@pytest.mark.parametrize(("profile", "dialect"), ENGINES)
async def test_half_an_emoji_in_an_answer_is_a_question_mark(
    pool: EnginePool, profile: str, dialect: str
) -> None:
    """No text on the wire can hold it; what was sampled is as it was."""
    witness = Witness([Reply("well", quirks=frozenset({Quirk.LONE_SURROGATE})), "done"])
    async with ScriptedEngine(PROFILES[profile], witness) as engine:
        task = task_of([user("one")], [user("two")])
        episode = await pool.play(engine, dialect, task, sampling=sampling_of(dialect))
    check_episode(episode)
    assert episode.head.ok
    trace = only_trace(episode)
    first, _ = answers_of(trace)
    by_ids = dialect in ("vllm-completions", "vllm-generate")  # the text is made of the ids, not taken
    assert trace.nodes[first].message.content[0].text == ("well" if by_ids else "well?")
    assert_whole(trace, witness)


async def test_heads_are_those_of_each_byte_of_an_emoji(pool: EnginePool) -> None:
    """Whose text alone would be the same replacement character for all of them."""
    witness = Witness(["🐈🐕🦜", "🎉"])
    async with ScriptedEngine(PROFILES["vllm-0.33"], witness) as engine:
        task = task_of([user("🙂")], [user("👍🏽")])
        trace = only_trace(await pool.play(engine, "vllm-chat", task))
    assert_tokens(trace, witness.heard)
    await assert_arrays(pool.trainer, trace, witness.heard, ["sampling_mask"])

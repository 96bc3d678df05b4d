"""Conversations with every engine and version, by way of broker and worker, to the client and the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_client import ArraysIncompleteError, array_references, arrays, check_episode
from env_worker.domain import Message, ToolCall
from tests.engine import PROFILES, Reply, ScriptedEngine, Served
from tests.helpers.engine_pool import EnginePool, engine_pool, task_of, user
from tests.helpers.engine_witness import (
    FIELDS,
    Witness,
    answers_of,
    assert_arrays,
    assert_messages,
    assert_tokens,
    info_of,
    only_trace,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROUTED, MASKS, HEADS = FIELDS
NO_MASKS = "on /inference/v1/generate only"
ENGINES: dict[tuple[str, str], dict[str, str]] = {
    ("vllm-0.13", "vllm-chat"): {ROUTED: "no routed_experts", MASKS: NO_MASKS},
    ("vllm-0.21", "vllm-chat"): {MASKS: NO_MASKS},
    ("vllm-0.22", "vllm-chat"): {MASKS: NO_MASKS},
    ("vllm-0.28", "vllm-chat"): {MASKS: NO_MASKS},
    ("vllm-0.33", "vllm-chat"): {MASKS: NO_MASKS},
    ("vllm-0.33", "vllm-completions"): {MASKS: NO_MASKS},
    ("vllm-0.33", "vllm-generate"): {},
    ("sglang-0.5.23", "sglang-chat"): {},
}
"""Engines with token ids, and what they cannot give, each with its reason."""
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}
SERVED = Served(sampling_mask=True)
SYSTEM = {"role": "system", "content": "Count legs. 🐾"}
FIRST = "How many legs have 3 cats? 🐈🐈🐈"
TASK = task_of([SYSTEM, user(FIRST)], ["results"], [user("Sure?")], tools=[TOOL])
CALLING = Reply(
    "Let me see. ", reasoning="they are cats", calls=(("count", '{"of": "cats"}'), ("count", '{"of":'))
)
REPLIES = (CALLING, Reply("12", versions=("step-1", "step-2")), "Yes — 12 🎉")


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    async with engine_pool() as pool:
        yield pool


def assert_engine_heard(engine: ScriptedEngine, messages: list[Message], path: str) -> None:
    """The engine's own log has the conversation, as we have it now."""
    *_, last = engine.log.of(path)
    heard = [Message.from_openai(message) for message in last.body["messages"]]
    assert heard == messages[: len(heard)]
    assert len(heard) == len(messages) - 1


@pytest.mark.parametrize(("profile", "dialect"), [pair for pair in ENGINES if "completions" not in pair[1]])
async def test_a_conversation_with_tools(pool: EnginePool, profile: str, dialect: str) -> None:
    """Messages are equal, token ids are the engine's root to leaf, arrays those of every position."""
    lacking = ENGINES[profile, dialect]
    witness = Witness(REPLIES)
    async with ScriptedEngine(PROFILES[profile], witness, served=SERVED) as engine:
        trace = only_trace(episode := await pool.play(engine, dialect, TASK))
    check_episode(episode)
    assert episode.head.ok
    assert arrays.episode_reward(episode) == 1.0
    first, second, third = answers_of(trace)
    ids = [call.id for call in trace.nodes[first].message.tool_calls]
    called = tuple(ToolCall(call, *given) for call, given in zip(ids, CALLING.calls, strict=True))
    assert all(ids)
    messages = [
        Message.from_openai(SYSTEM),
        Message.user(FIRST),
        Message.assistant("Let me see. ", reasoning="they are cats", tool_calls=called),
        *(Message.tool(f"count has heard {call.arguments}", call.id) for call in called),
        Message.assistant("12"),
        Message.user("Sure?"),
        Message.assistant("Yes — 12 🎉"),
    ]
    [path] = arrays.branches(trace)
    assert_messages(trace, path, messages)
    assert_engine_heard(engine, messages, "/render" if dialect == "vllm-generate" else "chat/completions")
    assert_tokens(trace, witness.heard)
    await assert_arrays(pool.trainer, trace, witness.heard, lacking)
    assert_reasons(trace, lacking, answers=3)
    calls = list(trace.calls)
    assert [call.node for call in calls] == [first, second, third]
    assert [call.finish_reason for call in calls] == ["tool_calls", "stop", "stop"]
    assert [call.prompt_tokens for call in calls] == [len(turn.prompt) for turn in witness.heard]
    assert [call.completion_tokens for call in calls] == [len(turn.sampled) for turn in witness.heard]
    assert {call.dialect for call in calls} == {dialect}
    labels = [[span.version for span in call.weight_versions] for call in calls]
    versioned = PROFILES[profile].chat_versions
    assert labels == ([["default"], ["step-1", "step-2"], ["default"]] if versioned else [[], [], []])
    if versioned:
        assert calls[1].weight_versions[1].end == len(witness.heard[1].sampled)


async def test_a_conversation_by_completions_leaves_calls_in_the_text(pool: EnginePool) -> None:
    witness = Witness([Reply("<think>so</think>12"), "Yes 🎉"])
    async with ScriptedEngine(PROFILES["vllm-0.33"], witness, served=SERVED) as engine:
        task = task_of([SYSTEM, user(FIRST)], [user("Sure?")])
        trace = only_trace(episode := await pool.play(engine, "vllm-completions", task))
    assert episode.head.ok
    [path] = arrays.branches(trace)
    said = ("<think>so</think>12", "Yes 🎉")
    asked = (Message.from_openai(SYSTEM), Message.user(FIRST), Message.user("Sure?"))
    assert_messages(
        trace, path, [*asked[:2], Message.assistant(said[0]), asked[2], Message.assistant(said[1])]
    )
    assert_tokens(trace, witness.heard)
    lacking = ENGINES["vllm-0.33", "vllm-completions"]
    await assert_arrays(pool.trainer, trace, witness.heard, lacking)
    assert_reasons(trace, lacking, answers=2)


async def test_the_openai_api_has_text_and_nothing_per_token(pool: EnginePool) -> None:
    async with ScriptedEngine(PROFILES["openai"], list(REPLIES)) as engine:
        trace = only_trace(
            episode := await pool.play(engine, "openai-chat", TASK, sampling={"temperature": 0.5})
        )
    assert episode.head.ok
    assert [trace.nodes[index].message.content[0].text for index in answers_of(trace)] == [
        "Let me see. ",
        "12",
        "Yes — 12 🎉",
    ]
    assert not any(node.token_ids for node in trace.nodes)
    assert all(call.prompt_tokens and call.completion_tokens for call in trace.calls)
    assert_reasons(trace, dict.fromkeys(FIELDS, "openai-chat has no token ids"), answers=3)
    [reference] = array_references(trace)
    assert set(reference["incomplete"]) == set(FIELDS)
    assert all("openai-chat has no token ids" in reason for reason in reference["incomplete"].values())
    with pytest.raises(ArraysIncompleteError, match="openai-chat"):
        await pool.trainer.fetch(reference, [ROUTED])


def assert_reasons(trace: Any, lacking: dict[str, str], *, answers: int) -> None:
    """The trace's own note of what it lacks, and what is known of its engine."""
    noted = info_of(trace, "incomplete") or {}
    assert set(noted) == set(lacking)
    for field, reason in lacking.items():
        assert reason in noted[field]["reason"]
        assert noted[field]["turns"] == answers
        assert noted[field]["first_node"] == answers_of(trace)[0]
    assert info_of(trace, "engine") == {"dialect": trace.calls[0].dialect, "logprobs_mode": "raw"}


@pytest.mark.parametrize(("profile", "dialect"), ENGINES)
async def test_a_history_that_is_tokenised_anew_is_another_branch(
    pool: EnginePool, profile: str, dialect: str
) -> None:
    """The template drops reasoning and renders the earlier answers to other ids."""
    witness = Witness([Reply(" so so ", reasoning="hm"), "second answer", "third"])
    lacking = ENGINES[profile, dialect]
    served = Served(sampling_mask=True, retokenize=True)
    async with ScriptedEngine(PROFILES[profile], witness, served=served) as engine:
        task = task_of([user("one")], [user("two")], [user("three")])
        trace = only_trace(episode := await pool.play(engine, dialect, task))
    check_episode(episode)
    assert episode.head.ok
    branches = arrays.branches(trace)
    assert len(branches) == 3
    answers = answers_of(trace)
    assert [path[-1] for path in branches] == answers
    assert_tokens(trace, witness.heard)
    await assert_arrays(pool.trainer, trace, witness.heard, lacking)
    texts = [trace.nodes[index].message.content[0].text for index in branches[2]]
    assert texts[::2] == ["one", "two", "three"]
    assert texts[3] == "second answer"
    # Where it was sampled is on the branch of its own turn; here it was given.
    assert [trace.nodes[index].sampled for index in branches[2]] == [False] * 5 + [True]
    assert not np.array_equal(witness.heard[0].ids, witness.heard[1].ids[: len(witness.heard[0].ids)])


@pytest.mark.parametrize(
    ("profile", "dialect"), [("vllm-0.33", "vllm-chat"), ("sglang-0.5.23", "sglang-chat")]
)
@pytest.mark.parametrize("turns", [4, 5])
async def test_a_history_that_is_rendered_anew_late_is_whole_when_a_turn_follows(
    pool: EnginePool, profile: str, dialect: str, turns: int
) -> None:
    """What is steady at first is asked only for its new rows. When that was too little, the next turn brings
    all of them."""
    witness = Witness([Reply(text) for text in ("1", "2", " so so ", "4", "5")[:turns]])
    served = Served(sampling_mask=True, retokenize=True)
    async with ScriptedEngine(PROFILES[profile], witness, served=served) as engine:
        task = task_of(*([user(f"turn {number}")] for number in range(turns)))
        trace = only_trace(await pool.play(engine, dialect, task))
    assert_tokens(trace, witness.heard)
    assert len(arrays.branches(trace)) == 2
    noted = info_of(trace, "incomplete").get(ROUTED)
    lacking = ENGINES[profile, dialect]
    if turns == 4:
        assert "they are needed from" in noted["reason"]
        assert (noted["turns"], noted["first_node"]) == (1, answers_of(trace)[3])
        await assert_arrays(pool.trainer, trace, witness.heard, lacking, branch_lacks={1: [ROUTED]})
    else:
        assert noted is None
        await assert_arrays(pool.trainer, trace, witness.heard, lacking)

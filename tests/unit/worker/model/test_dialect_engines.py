"""Each dialect against the scripted engines: every version, and every edge case with its holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
import pytest

from env_worker.domain import ImagePart, Message, SamplingParams, TextPart, ToolCall
from env_worker.model.dialects import DIALECTS
from env_worker.model.dialects.base import EngineOptions, Question
from env_worker.model.errors import EngineRefusedError, MalformedAnswerError
from tests.engine import (
    PROFILES,
    Profile,
    Quirk,
    Reply,
    ScriptedEngine,
    Served,
    expected_heads,
    expected_ids,
    expected_logprobs,
    expected_mask,
    expected_routing,
)
from tests.unit.worker.model.test_dialect_hostile import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from env_worker.model.dialects.base import Answer

PAIRS = [
    ("vllm-0.13", "vllm-chat"),
    ("vllm-0.21", "vllm-chat"),
    ("vllm-0.21", "vllm-completions"),
    *((f"vllm-{version}", f"vllm-{path}") for version in ("0.22", "0.28", "0.33")
      for path in ("chat", "completions", "generate")),
    ("sglang-0.5.23", "sglang-chat"),
]  # fmt: skip
ROUTED, MASKS, HEADS = "routed_experts", "sampling_mask", "top_logprobs"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SERVED = Served(sampling_mask=True)
OPTIONS = EngineOptions(
    arrays=frozenset({ROUTED, MASKS, HEADS}),
    routing_shape=(SERVED.layers, SERVED.top_k),
    experts=SERVED.experts,
)
TEXT = "a short answer"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def ask(
    session: aiohttp.ClientSession,
    profile: str,
    dialect: str,
    reply: Reply,
    messages: Sequence[Message] = (Message.user("hello"),),
    *,
    known: Any = (),
    served: Served = SERVED,
    tools: Sequence[Mapping[str, Any]] = (),
    **sampling: Any,
) -> Answer:
    """The answer of a scripted engine that says `reply`."""
    async with ScriptedEngine(PROFILES[profile], [reply], served=served) as engine:
        root = engine.url.removesuffix("/v1")

        async def post(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
            url = root + path if path.startswith("/") else f"{root}/v1/{path}"
            async with session.post(url, json=body) as response:
                if response.status != 200:
                    raise EngineRefusedError(await response.text(), status=response.status)
                content: Mapping[str, Any] = await response.json()
                return content

        question = Question(
            model=served.model,
            messages=messages,
            sampling=SamplingParams(**{"logprobs": 3, "temperature": 1.0, "top_k": 50, **sampling}),
            tools=tools,
            known=np.asarray(known, np.int32),
            conversation="c",
        )
        return await DIALECTS[dialect].ask(question, OPTIONS, post)


def lacking(profile: Profile, dialect: str) -> set[str]:
    """What this version does not give on this path, however it is asked."""
    lacks = set()
    if profile.routing == "none":
        lacks.add(ROUTED)
    if not profile.masks or dialect in ("vllm-chat", "vllm-completions"):
        lacks.add(MASKS)
    return lacks


@pytest.mark.parametrize(("profile", "dialect"), PAIRS)
@pytest.mark.parametrize("known", [0, 7])
async def test_all_that_a_version_gives_is_taken(
    session: aiohttp.ClientSession, profile: str, dialect: str, known: int
) -> None:
    messages = [Message.system("be brief"), Message.user("héllo 🙂")]
    prompt = expected_ids([message.to_openai() for message in messages])
    answer = await ask(session, profile, dialect, Reply(TEXT), messages, known=prompt[:known])
    assert set(answer.holes) == lacking(PROFILES[profile], dialect)
    assert answer.message == Message.assistant(TEXT)
    assert answer.prompt_ids is not None
    assert answer.sampled_ids is not None
    assert np.array_equal(answer.prompt_ids, prompt)
    assert np.array_equal(answer.sampled_ids, Reply(TEXT).sampled())
    count = len(answer.sampled_ids)
    assert (answer.prompt_tokens, answer.completion_tokens) == (len(prompt), count)
    assert answer.logprobs is not None
    assert np.allclose(answer.logprobs, expected_logprobs(count))
    assert answer.top_logprobs is not None
    heads = expected_heads(answer.sampled_ids, 3)
    assert answer.top_logprobs.counts.tolist() == [3] * count
    assert np.array_equal(answer.top_logprobs.ids, heads.ids.ravel())
    assert np.allclose(answer.top_logprobs.logprobs, heads.logprobs.ravel())
    if ROUTED not in answer.holes:
        assert answer.routing is not None
        start, rows = answer.routing
        asks = PROFILES[profile].chat_rows_from or dialect == "vllm-generate"
        assert start == (max(known - 1, 0) if asks else 0)
        assert np.array_equal(rows, expected_routing(range(start, len(prompt) + count - 1)))
    if MASKS not in answer.holes:
        assert answer.sampling_mask is not None
        assert np.array_equal(answer.sampling_mask.ids, expected_mask(answer.sampled_ids).ids)
    if PROFILES[profile].chat_versions:
        assert [(span.version, span.start, span.end) for span in answer.weight_versions] == [
            ("default", 0, count)
        ]
    check(answer)


BREAKS: dict[Quirk, set[str]] = {
    Quirk.SAMPLED_MISSING: {"logprobs"},
    Quirk.HEAD_NOT_SAMPLED: {HEADS},
    Quirk.LOGPROB_NULL: {"logprobs"},
    Quirk.LOGPROB_MINUS_INF: {"logprobs"},
    Quirk.LOGPROB_POSITIVE: {"logprobs", HEADS},
    Quirk.LOGPROBS_SHORT: {"logprobs", HEADS},
    Quirk.LOGPROBS_MISSING: {"logprobs", HEADS},
    Quirk.IDS_MISSING: {"token_ids", "logprobs", HEADS, ROUTED, MASKS},
    Quirk.IDS_SHORT: {"token_ids", "logprobs", HEADS, ROUTED, MASKS},
    Quirk.IDS_TEXT: {"token_ids", "logprobs", HEADS, ROUTED, MASKS},
    Quirk.IDS_NEGATIVE: {"token_ids", "logprobs", HEADS, ROUTED, MASKS},
    Quirk.USAGE_WRONG: {"token_ids", "logprobs", HEADS, ROUTED, MASKS},
    Quirk.USAGE_MISSING: set(),
    Quirk.ROUTING_MISSING: {ROUTED},
    Quirk.ROUTING_ZERO: {ROUTED},
    Quirk.ROUTING_SHORT: {ROUTED},
    Quirk.ROUTING_LONG: {ROUTED},
    Quirk.ROUTING_WHOLE: set(),
    Quirk.ROUTING_EXPERT_TOO_LARGE: {ROUTED},
    Quirk.ROUTING_TRUNCATED: {ROUTED},
    Quirk.ROUTING_NOT_BASE64: {ROUTED},
    Quirk.ROUTING_FLOAT: {ROUTED},
    Quirk.MASK_MISSING: {MASKS},
    Quirk.MASK_WITHOUT_SAMPLED: {MASKS},
    Quirk.MASK_SHORT: {MASKS},
    Quirk.MASK_EMPTY_ROW: set(),
    Quirk.SPANS_MISSING: set(),
    Quirk.SPANS_SHORT: {"weight_versions"},
    Quirk.SPANS_GAP: {"weight_versions"},
    Quirk.KEYS_MISSING: set(),
    Quirk.CONTENT_NULL: set(),
    Quirk.LONE_SURROGATE: set(),
    Quirk.HEAD_MINUS_INF: set(),
    Quirk.SAMPLED_REPEATED: set(),
    Quirk.SAMPLED_OUTSIDE_TOP_K: set(),
}
"""What is not in an answer with this quirk, where the dialect would have it."""
NPY_ONLY = (Quirk.ROUTING_FLAT, Quirk.ROUTING_HUGE_HEADER, Quirk.ROUTING_PICKLE)
NO_MESSAGE = {
    ("vllm-generate", Quirk.IDS_MISSING),
    ("vllm-generate", Quirk.IDS_TEXT),
    ("vllm-generate", Quirk.IDS_NEGATIVE),
    ("vllm-completions", Quirk.CONTENT_NULL),
}
"""Where what is missing is all that a message could be made of."""
NEWEST = [(profile, dialect) for profile, dialect in PAIRS if profile in ("vllm-0.33", "sglang-0.5.23")]


@pytest.mark.parametrize(("profile", "dialect"), NEWEST)
@pytest.mark.parametrize("quirk", [*BREAKS, *NPY_ONLY])
async def test_edge_cases_leave_their_holes_and_no_other(
    session: aiohttp.ClientSession, profile: str, dialect: str, quirk: Quirk
) -> None:
    breaks = BREAKS.get(quirk, {ROUTED} if profile != "sglang-0.5.23" else set())
    if dialect == "sglang-chat" and quirk is Quirk.HEAD_NOT_SAMPLED:
        breaks = set()  # its candidates are by rank, and the sampled token is put before them
    reply = Reply(TEXT, quirks=frozenset({quirk}))
    if (dialect, quirk) in NO_MESSAGE:
        with pytest.raises(MalformedAnswerError):
            await ask(session, profile, dialect, reply)
        return
    answer = await ask(session, profile, dialect, reply, known=[1, 2, 3])
    assert set(answer.holes) == breaks | lacking(PROFILES[profile], dialect)
    check(answer)


async def test_the_best_stay_beside_a_sampled_token_that_is_none_of_them(
    session: aiohttp.ClientSession,
) -> None:
    for profile, dialect in NEWEST:
        for quirk in (Quirk.SAMPLED_OUTSIDE_TOP_K, Quirk.SAMPLED_REPEATED):
            answer = await ask(session, profile, dialect, Reply(TEXT, quirks=frozenset({quirk})))
            assert answer.top_logprobs is not None
            assert answer.sampled_ids is not None
            count = len(answer.sampled_ids)
            assert answer.top_logprobs.counts.tolist() == [3] * count
            heads = answer.top_logprobs.ids.reshape(count, 3)
            assert np.array_equal(heads[:, 0], answer.sampled_ids)
            assert all(len(set(head)) == 3 for head in heads.tolist())


@pytest.mark.parametrize(("profile", "dialect"), PAIRS)
async def test_texts_in_the_place_of_ids_leave_no_heads(
    session: aiohttp.ClientSession, profile: str, dialect: str
) -> None:
    answer = await ask(session, profile, dialect, Reply(TEXT, quirks=frozenset({Quirk.TOKEN_TEXTS})))
    check(answer)
    if dialect in ("vllm-chat", "vllm-completions"):
        assert "text alone tells no id" in answer.holes[HEADS]
        assert answer.logprobs is not None


@pytest.mark.parametrize(("profile", "dialect"), NEWEST)
@pytest.mark.parametrize("quirk", [Quirk.CHOICES_EMPTY, Quirk.CHOICE_NULL, Quirk.MESSAGE_NULL])
async def test_answers_without_a_message_are_malformed(
    session: aiohttp.ClientSession, profile: str, dialect: str, quirk: Quirk
) -> None:
    if dialect == "vllm-generate" and quirk is Quirk.MESSAGE_NULL:
        return  # its message is the server's parse of the ids
    with pytest.raises(MalformedAnswerError):
        await ask(session, profile, dialect, Reply(TEXT, quirks=frozenset({quirk})))


@pytest.mark.parametrize(("profile", "dialect"), [pair for pair in PAIRS if pair[1] != "vllm-completions"])
async def test_reasoning_and_broken_tool_calls_cross_and_come_back_equal(
    session: aiohttp.ClientSession, profile: str, dialect: str
) -> None:
    first = Message.user((TextPart("look"), ImagePart("data:image/png;base64,AAAA")))
    reply = Reply(reasoning="why 🙂", calls=(("f", '{"broken": '), ("f", '{"a": 1}')))
    answer = await ask(session, profile, dialect, reply, [first], tools=[TOOL])
    assert answer.message.reasoning == "why 🙂"
    assert [(call.name, call.arguments) for call in answer.message.tool_calls] == list(reply.calls)
    conversation = [first, answer.message, Message.tool("done", answer.message.tool_calls[0].id)]
    after = await ask(session, profile, dialect, Reply("ok"), conversation, tools=[TOOL])
    assert after.prompt_ids is not None
    known = np.concatenate([answer.prompt_ids, answer.sampled_ids])
    assert np.array_equal(after.prompt_ids[: len(known)], known)
    assert isinstance(answer.message.tool_calls[0], ToolCall)


@pytest.mark.parametrize(("profile", "dialect"), NEWEST)
async def test_a_prompt_that_ends_before_the_known_tokens_has_all_its_rows(
    session: aiohttp.ClientSession, profile: str, dialect: str
) -> None:
    answer = await ask(session, profile, dialect, Reply(TEXT), known=range(10_000))
    assert set(answer.holes) == lacking(PROFILES[profile], dialect)
    assert answer.routing is not None
    assert answer.routing.start == 0


@pytest.mark.parametrize(("profile", "dialect"), PAIRS)
async def test_length_stop_and_abort_are_the_engines_words(
    session: aiohttp.ClientSession, profile: str, dialect: str
) -> None:
    answer = await ask(session, profile, dialect, Reply(TEXT), max_tokens=3)
    assert (answer.finish_reason, answer.message.text) == ("length", TEXT[:3])
    answer = await ask(session, profile, dialect, Reply("one END two"), stop=("END",))
    assert answer.finish_reason == "stop"
    assert answer.message.text == (
        "one " if profile in ("vllm-0.33", "sglang-0.5.23") else answer.message.text
    )
    answer = await ask(session, profile, dialect, Reply(ids=(), finish_reason="abort"))
    assert answer.finish_reason == "abort"
    assert answer.message == Message.assistant("")
    check(answer)


async def test_openai_itself_understands_openai_chat(session: aiohttp.ClientSession) -> None:
    answer = await ask(session, "openai", "openai-chat", Reply(TEXT), top_k=None, max_tokens=50, logprobs=0)
    assert answer.message == Message.assistant(TEXT)
    assert set(answer.holes) == {ROUTED, MASKS, HEADS}

"""What an engine gives wrongly, or not at all, is a hole with its reason for client and trainer alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from env_client import ArraysIncompleteError, array_references, arrays, check_episode
from tests.engine import PROFILES, Quirk, Reply, ScriptedEngine, Served, expected_logprobs
from tests.helpers.engine_pool import EnginePool, engine_pool, task_of, user
from tests.helpers.engine_witness import (
    FIELDS,
    Witness,
    answers_of,
    assert_arrays,
    expected_arrays,
    info_of,
    only_trace,
)
from tests.helpers.kept_arrays import assert_equal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from envtrio.v1.episode_pb2 import Trace

ROUTED, MASKS, HEADS = FIELDS
LOGPROBS, IDS, VERSIONS = "logprobs", "token_ids", "weight_versions"
ALL: Final = (IDS, LOGPROBS, *FIELDS)
CHAT, GENERATE, SGLANG = (
    ("vllm-0.33", "vllm-chat"),
    ("vllm-0.33", "vllm-generate"),
    ("sglang-0.5.23", "sglang-chat"),
)
LOGPROB_BYTES: Final = expected_logprobs(5).astype("<f4").tobytes()
MISSING: Final = "1 of 5 log-probabilities are missing or none"
ROWS: Final = "rows, expected"

EVERYWHERE: Final[dict[Quirk, dict[str, str]]] = {
    Quirk.SAMPLED_MISSING: {LOGPROBS: MISSING},
    Quirk.LOGPROB_NULL: {LOGPROBS: MISSING},
    Quirk.LOGPROB_MINUS_INF: {LOGPROBS: MISSING},
    Quirk.LOGPROB_NAN_LITERAL: {LOGPROBS: MISSING},
    Quirk.LOGPROB_POSITIVE: {LOGPROBS: MISSING, HEADS: "no log-probability"},
    Quirk.LOGPROBS_SHORT: {LOGPROBS: "expected 5", HEADS: "expected 5"},
    Quirk.LOGPROBS_MISSING: {LOGPROBS: "the response has no", HEADS: "the response has no"},
    Quirk.IDS_SHORT: dict.fromkeys(ALL, "4 token ids, but counts 5"),
    Quirk.USAGE_WRONG: dict.fromkeys(ALL, "5 token ids, but counts 6"),
    Quirk.PROMPT_IDS_MISSING: dict.fromkeys(ALL, "prompt_token_ids"),
    Quirk.ROUTING_MISSING: {ROUTED: "--enable-return-routed-experts"},
    Quirk.ROUTING_ZERO: {ROUTED: "all zero"},
    Quirk.ROUTING_SHORT: {ROUTED: ROWS},
    Quirk.ROUTING_LONG: {ROUTED: ROWS},
    Quirk.ROUTING_EXPERT_TOO_LARGE: {ROUTED: "expert 64, expected 0 to 63"},
    Quirk.ROUTING_TRUNCATED: {ROUTED: "routed_experts"},
    Quirk.ROUTING_NOT_BASE64: {ROUTED: "base64"},
    Quirk.ROUTING_FLOAT: {ROUTED: ""},
    Quirk.SPANS_SHORT: {VERSIONS: "covers 4 sampled tokens, expected 5"},
    Quirk.SPANS_GAP: {VERSIONS: "expected spans that follow each other"},
}
"""What a turn of five tokens lacks with this quirk, and a part of each reason."""
MASKED: Final[dict[Quirk, dict[str, str]]] = {
    Quirk.MASK_MISSING: {MASKS: "the response has no"},
    Quirk.MASK_WITHOUT_SAMPLED: {MASKS: "lacks its own id"},
    Quirk.MASK_SHORT: {MASKS: "4 entries, expected 5"},
}
"""The same, of engines that have masks."""
NPY: Final[dict[Quirk, dict[str, str]]] = {
    Quirk.ROUTING_FLAT: {ROUTED: "expected (rows, layers, top_k)"},
    Quirk.ROUTING_HUGE_HEADER: {ROUTED: "routed_experts"},
    Quirk.ROUTING_PICKLE: {ROUTED: "routed_experts"},
}
"""The same, of those whose routing is an npy file."""
TEXTS: Final = {Quirk.TOKEN_TEXTS: {HEADS: "their text alone tells no id"}}
SOUND: Final = (
    Quirk.KEYS_MISSING,
    Quirk.USAGE_MISSING,
    Quirk.ROUTING_WHOLE,
    Quirk.SPANS_MISSING,
)
"""What is no hole at all."""
CASES: Final = [
    *((engine, quirk, lacks) for engine in (CHAT, GENERATE, SGLANG) for quirk, lacks in EVERYWHERE.items()),
    *((engine, quirk, lacks) for engine in (GENERATE, SGLANG) for quirk, lacks in MASKED.items()),
    *((engine, quirk, lacks) for engine in (CHAT, GENERATE) for quirk, lacks in NPY.items()),
    *((CHAT, quirk, lacks) for quirk, lacks in TEXTS.items()),
    *((engine, quirk, {}) for engine in (CHAT, GENERATE, SGLANG) for quirk in SOUND),
]
IN_THE_PROMPT: Final = {(GENERATE, Quirk.PROMPT_IDS_MISSING)}
"""The client had rendered the prompt itself."""


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[EnginePool]:
    async with engine_pool() as pool:
        yield pool


@pytest.mark.parametrize(
    ("engine", "quirk", "lacks"), CASES, ids=lambda value: value[1] if isinstance(value, tuple) else None
)
async def test_what_is_wrong_is_a_hole_and_the_rest_is_served(
    pool: EnginePool, engine: tuple[str, str], quirk: Quirk, lacks: dict[str, str]
) -> None:
    """Of two turns the first is so; the second is whole. Of routing rows alone there is one turn: another
    would bring them."""
    profile, dialect = engine
    lacks = {} if (engine, quirk) in IN_THE_PROMPT else lacks
    mended = set(lacks) == {ROUTED} and engine != GENERATE
    witness = Witness([Reply("four", quirks=frozenset({quirk})), "whole"])
    async with ScriptedEngine(PROFILES[profile], witness, served=Served(sampling_mask=True)) as server:
        turns = [user("one")], [user("two")]
        episode = await pool.play(server, dialect, task_of(*(turns[:1] if mended else turns)))
    check_episode(episode)
    assert episode.head.ok, episode.head.errors
    assert arrays.episode_reward(episode) == 1.0
    trace = only_trace(episode)
    first, *later = answers_of(trace)
    noted = info_of(trace, "incomplete") or {}
    unknown = {} if dialect != "vllm-chat" else {MASKS: "on /inference/v1/generate only"}
    assert set(noted) == {*lacks, *unknown}
    for field, reason in {**unknown, **lacks}.items():
        assert reason in noted[field]["reason"], noted[field]
        turns_without = 1 + len(later) if field in unknown else 1
        assert (noted[field]["turns"], noted[field]["first_node"]) == (turns_without, first)
    assert trace.nodes[first].logprobs == (b"" if LOGPROBS in lacks else LOGPROB_BYTES)
    assert all(arrays.logprobs(trace.nodes[node]) is not None for node in later)
    if IDS in lacks:
        assert not trace.nodes[first].token_ids
    else:
        assert np.array_equal(arrays.branch_token_ids(trace, first), witness.heard[0].ids)
    for node, heard in zip(later, witness.heard[1:], strict=True):
        assert np.array_equal(arrays.branch_token_ids(trace, node), heard.ids)
    assert bool(trace.calls[0].weight_versions) == (
        not {VERSIONS, IDS} & set(lacks) and quirk is not Quirk.SPANS_MISSING
    )
    await assert_served(pool, trace, witness, noted, {*lacks, *unknown})


async def assert_served(
    pool: EnginePool, trace: Trace, witness: Witness, noted: dict[str, Any], missing: set[str]
) -> None:
    """A fetch of a field with a hole is refused; the other fields come as they must be."""
    [reference], [path] = array_references(trace), arrays.branches(trace)
    incomplete = reference.get("incomplete", {})
    assert set(incomplete) == missing & set(FIELDS)
    for field, reason in incomplete.items():
        assert noted[field]["reason"][:60] in reason
        with pytest.raises(ArraysIncompleteError) as refused:
            await pool.trainer.fetch(reference, [field])
        assert refused.value.metadata == {"field": field, "hole": reason}
    # A candidate without a value is left out: then heads are not those of a sound engine.
    odd = {HEADS} if LOGPROBS in missing else set()
    whole = [field for field in FIELDS if field not in missing | odd]
    if not whole:
        return
    expected = expected_arrays(trace, path, witness.heard)
    kept = {name: expected[name] for name in expected if name.partition(".")[0] in whole}
    assert_equal(await pool.trainer.fetch(reference, whole), kept)


@pytest.mark.parametrize("engine", [CHAT, SGLANG])
async def test_rows_that_come_with_the_next_turn_are_no_hole_any_more(
    pool: EnginePool, engine: tuple[str, str]
) -> None:
    """Neither in the reference nor in what the trace says of itself."""
    profile, dialect = engine
    witness = Witness([Reply("four", quirks=frozenset({Quirk.ROUTING_TRUNCATED})), "whole"])
    async with ScriptedEngine(PROFILES[profile], witness, served=Served(sampling_mask=True)) as server:
        trace = only_trace(await pool.play(server, dialect, task_of([user("one")], [user("two")])))
    lacking = [MASKS] if engine == CHAT else []
    assert set(info_of(trace, "incomplete") or {}) == set(lacking)
    await assert_arrays(pool.trainer, trace, witness.heard, lacking)


async def test_a_candidate_that_is_missing_is_left_out_of_its_head(pool: EnginePool) -> None:
    """-9999.0 stands for no value: never a log-probability of anything."""
    witness = Witness([Reply("four", quirks=frozenset({Quirk.HEAD_MINUS_INF}))])
    async with ScriptedEngine(PROFILES["vllm-0.33"], witness, served=Served(sampling_mask=True)) as server:
        trace = only_trace(await pool.play(server, "vllm-generate", task_of([user("one")])))
    [reference] = array_references(trace)
    found = await pool.trainer.fetch(reference, [HEADS])
    assert found["top_logprobs.counts"].tolist() == [2] * 5
    assert (found["top_logprobs.logprobs"] > -10).all()
    assert np.array_equal(found["top_logprobs.ids"][::2], witness.heard[0].sampled)

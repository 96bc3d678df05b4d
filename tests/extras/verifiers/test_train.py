"""The train client: token ids and arrays, from the engine to a trainer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from env_client import ArrayClient, array_references
from env_client.arrays import logprobs, token_ids
from tests.extras.verifiers.engine import KEPT, row

if TYPE_CHECKING:
    from envtrio.v1.episode_pb2 import Trace

    from tests.extras.verifiers.stage import Stage

pytestmark = pytest.mark.timeout(170)


def version_of(trace: Trace) -> str:
    version: str = json.loads(trace.info_json["verifiers"])["version"]
    return version


@pytest.mark.parametrize("model", ["second", "second-bare"], ids=["by rank", "beyond what was asked for"])
async def test_the_sampled_token_is_the_first_of_its_head(pool: Stage, model: str) -> None:
    """verifiers ranks them. Without a mask it has the best beside it, with one all that the mask has: here no
    more than was asked for."""
    sampling = {"temperature": 1.0, "max_tokens": 128, "top_logprobs_count": 2}
    episode = await pool.client.run({"index": 0}, env="plain-train", model=model, sampling=sampling)
    [trace] = episode.traces
    [reference] = array_references(trace)
    if version_of(trace) == "0.4.0":
        assert "takes no heads" in reference["incomplete"]["top_logprobs"]
        return
    async with ArrayClient() as trainer:
        found = await trainer.fetch(reference, ["top_logprobs"])
    turn = pool.engine.generations[-1]
    counts = found["top_logprobs.counts"]
    assert set(counts.tolist()) == {2}
    starts = np.cumsum(counts) - counts
    assert found["top_logprobs.ids"][starts].tolist() == turn.sampled
    assert found["top_logprobs.ids"][starts + 1].tolist() == [ids[1] for ids in turn.kept]
    values = found["top_logprobs.logprobs"]
    [answer] = [node for node in trace.nodes if node.sampled]
    assert values[starts].tolist() == pytest.approx(logprobs(answer).tolist())
    assert values[starts + 1].tolist() == pytest.approx(turn.logprobs)


async def test_what_the_engine_gave_is_what_a_trainer_gets(pool: Stage) -> None:
    sampling = {"temperature": 1.0, "max_tokens": 128, "top_logprobs_count": KEPT}
    episode = await pool.client.run({"index": 0}, env="calc-train", sampling=sampling)
    [trace] = episode.traces
    turns = [one for one in pool.engine.generations if one.conversation == trace.header.trace_id]
    assert len(turns) == 3
    ids = np.concatenate([token_ids(node) for node in trace.nodes])
    assert ids.tolist() == turns[-1].prompt + turns[-1].sampled, "root to leaf is not what the engine saw"
    sampled = [node for node in trace.nodes if node.sampled]
    for node, turn in zip(sampled, turns, strict=True):
        assert token_ids(node)[-len(turn.sampled) :].tolist() == turn.sampled
        assert logprobs(node).tolist() == pytest.approx(turn.logprobs)
    assert (trace.ok, trace.rewards["exact"].value) == (True, 1.0)
    [reference] = array_references(trace)
    heads = "top_logprobs" not in reference.get("incomplete", {})
    version = version_of(trace)
    assert heads == (version != "0.4.0")
    async with ArrayClient() as trainer:
        fields = ["routed_experts", "sampling_mask", *(["top_logprobs"] if heads else [])]
        found = await trainer.fetch(reference, fields)
        assert await trainer.release(reference) == 1
    # The rows at the borders of turns, which were placeholders, were repaired; the last one still is one.
    rows = np.stack([*(row(position) for position in range(len(ids) - 1)), row(len(ids) - 2)])
    np.testing.assert_array_equal(found["routed_experts"], rows)
    kept = [ids for turn in turns for ids in turn.kept]
    assert found["sampling_mask.ids"].tolist() == [one for ids in kept for one in ids]
    if heads:
        assert found["top_logprobs.ids"].tolist() == [one for ids in kept for one in ids]
        first = found["top_logprobs.logprobs"][:: len(kept[0])]
        assert first.tolist() == pytest.approx([value for turn in turns for value in turn.logprobs])
        assert [[span.version, span.start, span.end] for span in trace.calls[0].weight_versions] == [
            ["v7", 0, len(turns[0].sampled)]
        ]
    else:
        said = json.loads(trace.info_json["incomplete"])["top_logprobs"]
        assert said == {
            "turns": 3,
            "first_node": 2,
            "reason": f"verifiers {version} takes no heads; install a later one",
        }
        assert "0.4.0 takes no heads" in reference["incomplete"]["top_logprobs"]

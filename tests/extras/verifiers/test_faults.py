"""What an engine does not give, gives up, or must not see repeated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from env_client import EnvError, array_references
from env_client.arrays import logprobs
from tests.extras.verifiers.stage import KEY

if TYPE_CHECKING:
    from envtrio.v1.episode_pb2 import Trace

    from env_client import Episode
    from tests.extras.verifiers.stage import Stage

pytestmark = pytest.mark.timeout(170)


def incomplete(trace: Trace) -> Any:
    return json.loads(trace.info_json["incomplete"])


@pytest.mark.parametrize(
    ("env", "model", "sampling", "reasons"),
    [
        (
            "plain", "m", {"top_logprobs_count": 2},
            {
                "routed_experts": "takes text only",
                "sampling_mask": "takes text only",
                "top_logprobs": "takes text only",
            },
        ),
        (
            "plain-train", "bare", {},
            {"routed_experts": "gave no routing rows", "sampling_mask": "gave no sampling mask"},
        ),
        ("plain-train", "zeros", {}, {"routed_experts": "all zero in 27 rows"}),
    ],
    ids=["text", "bare", "zeros"],
)  # fmt: skip
async def test_an_array_that_was_asked_for_and_is_not_there_is_said(
    pool: Stage, env: str, model: str, sampling: dict[str, Any], reasons: dict[str, str]
) -> None:
    episode = await pool.client.run({"index": 0}, env=env, model=model, sampling=sampling)
    [trace] = episode.traces
    found = incomplete(trace)
    assert set(found) == set(reasons)
    for name, reason in reasons.items():
        assert reason in found[name]["reason"]
    assert (episode.head.ok, trace.rewards["right"].value) == (True, 1.0)


@pytest.mark.parametrize("env", ["plain", "plain-train"])
async def test_an_answer_that_was_aborted_is_asked_for_again(pool: Stage, env: str) -> None:
    pool.engine.aborts = 1
    episode = await pool.client.run({"index": 0}, env=env, model="abort")
    [trace] = episode.traces
    assert [call.HasField("error") for call in trace.calls] == [True, False]
    assert "abort" in trace.calls[0].error.message
    assert (episode.head.ok, trace.rewards["right"].value) == (True, 1.0)


@pytest.mark.parametrize("env", ["plain", "plain-train"])
async def test_where_all_are_aborted_it_is_the_models_fault_and_no_zero(pool: Stage, env: str) -> None:
    pool.engine.aborts = 100
    try:
        episode = await pool.client.run({"index": 0}, env=env, model="abort")
    finally:
        pool.engine.aborts = 0
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok) == (False, False)
    assert {error.phase for error in episode.head.errors} == {"model"}
    assert "abort" in episode.head.errors[0].message
    assert not any(reward.HasField("value") for reward in trace.rewards.values())


@pytest.mark.parametrize("env", ["plain", "plain-train"])
async def test_an_answer_that_its_client_cannot_read_is_the_models_fault(pool: Stage, env: str) -> None:
    """verifiers says no more than that its harness has ended; what kind of call it died of the calls tell."""
    episode = await pool.client.run({"index": 0}, env=env, model="short")
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok) == (False, False)
    told = [*episode.head.errors, *trace.errors, *(call.error for call in trace.calls)]
    assert {(one.phase, bool(one.message)) for one in told} == {("model", True)}
    assert len(episode.head.errors) == len(trace.errors) == 1
    assert not any(reward.HasField("value") for reward in trace.rewards.values())


async def test_an_answer_that_no_node_can_carry_is_the_models_fault(pool: Stage) -> None:
    episode = await pool.client.run({"index": 0}, env="plain", model="large")
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok) == (False, False)
    [error] = episode.head.errors
    assert error.phase == "model"
    assert "bytes of text or more, the limit is" in error.message
    assert [call.HasField("error") for call in trace.calls] == [True], "it is not asked again"
    assert not any(reward.HasField("value") for reward in trace.rewards.values())


@pytest.mark.parametrize(
    ("model", "field", "reason"),
    [
        ("high", "logprobs", "first that of sampled token 2: 0.7; expected above -9999 and at most 0"),
        ("alien", "sampling_mask", "of sampled token 2 lacks its own id"),
    ],
)
async def test_what_verifiers_lets_through_and_is_none_is_a_hole(
    pool: Stage, model: str, field: str, reason: str
) -> None:
    episode = await pool.client.run({"index": 0}, env="plain-train", model=model)
    [trace] = episode.traces
    assert {name: reason in one["reason"] for name, one in incomplete(trace).items()} == {field: True}
    [answer] = [node for node in trace.nodes if node.sampled]
    assert (logprobs(answer) is None) == (field == "logprobs")
    [reference] = array_references(trace)
    assert set(reference.get("incomplete", {})) == {field} & {"sampling_mask"} | {"top_logprobs"}
    assert (episode.head.ok, trace.rewards["right"].value) == (True, 1.0)


def said(episode: Episode) -> str:
    return " ".join(map(str, (episode.head, *episode.traces)))


@pytest.mark.parametrize("env", ["plain", "plain-train"])
async def test_the_key_goes_to_the_engine_and_nowhere_else(pool: Stage, env: str) -> None:
    await pool.client.run({"index": 0}, env=env)
    assert pool.engine.keys[-1] == KEY
    episode = await pool.client.run({"index": 0}, env=env, model="nokey")
    assert pool.engine.keys[-1] == KEY
    assert not episode.head.ok
    assert "Incorrect API key: ***" in episode.head.errors[0].message
    assert KEY not in said(episode)


async def test_tools_that_serve_all_runs_have_no_key_in_their_environment(pool: Stage) -> None:
    episode = await pool.client.run({"index": 0}, env="shared")
    [trace] = episode.traces
    results = [node.message.content[0].text for node in trace.nodes if node.message.tool_call_id]
    assert results == ["5 ['', '', '1']", "12 ['', '', '1']"]


async def test_a_number_in_the_place_of_an_index_is_refused(pool: Stage) -> None:
    with pytest.raises(EnvError, match=r"give \{.index.: 1\}") as refused:
        await pool.client.run({"idx": 1}, env="plain")
    assert refused.value.reason == "INVALID_TASK"


async def test_a_tokenizer_that_is_not_on_the_hub_is_told_with_its_field(pool: Stage) -> None:
    episode = await pool.client.run({"index": 0}, env="hub-train")
    [trace] = episode.traces
    assert (episode.head.ok, trace.ok) == (False, False)
    wanted = "the tokenizer 'no-such/tokenizer' cannot be loaded: set renderer_model_name of the client"
    for one in (*episode.head.errors, *trace.errors, trace.calls[0].error):
        assert wanted in one.message

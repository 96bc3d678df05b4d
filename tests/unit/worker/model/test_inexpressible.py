"""Sampling parameters that a run's engine has not got, or wants: told by their names, as the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from env_worker.domain import EpisodeError, SamplingParams
from env_worker.model.dialects import DIALECTS
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.errors import EngineError, EngineRefusedError, InexpressibleError, loggable
from env_worker.model.http import close_clients
from env_worker.testing import rehearse
from tests.engine import OPENAI, PROFILES, ScriptedEngine, Served
from tests.helpers.engine_models import QUESTION, errors_of, model_of, new_trace
from tests.unit.worker.model.responses import Engine, derendered, question, rendered, vllm_generate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_worker.envs.base import Context

MASKS = EngineOptions(arrays=frozenset({"sampling_mask"}))
NEEDED = "vLLM has sampling masks only where temperature and top_k are above 0, and "
TOP_K_UNSET = f"{NEEDED}top_k is not set: set it in the sampling parameters"


@pytest.fixture(autouse=True)
async def connections() -> AsyncIterator[None]:
    yield
    await close_clients()


class HandsOn:
    """An environment that hands the run's sampling parameters on, as most do."""

    async def run(self, context: Context) -> None:
        trace = context.new_trace()
        await context.model.chat(trace, [QUESTION], sampling=context.sampling)
        trace.set_reward("answered", 1.0)


async def test_what_a_dialect_cannot_say_is_an_error_of_the_model_before_anything_is_sent() -> None:
    trace = new_trace()
    async with ScriptedEngine(OPENAI) as engine:
        with pytest.raises(InexpressibleError, match="top_k is 5") as raised:
            await model_of(engine, "openai-chat").chat(trace, [QUESTION], sampling=SamplingParams(top_k=5))
        assert not engine.requests
    assert isinstance(raised.value, EngineError)
    assert (raised.value.status, raised.value.retryable) == (None, False)
    assert errors_of(trace) == [(1, "InexpressibleError")]
    assert trace.pending is None


@pytest.mark.parametrize(
    ("dialect", "sampling", "named"),
    [
        ("openai-chat", SamplingParams(top_k=5), "sampling parameter top_k is 5"),
        ("openai-chat", SamplingParams(min_p=0.1), "sampling parameter min_p is 0.1"),
        (
            "openai-chat",
            SamplingParams(repetition_penalty=2.0),
            "sampling parameter repetition_penalty is 2.0",
        ),
        *((name, SamplingParams(extra={"n": 2}), "extra sampling key 'n'") for name in DIALECTS),
        ("vllm-completions", SamplingParams(extra={"prompt": "x"}), "extra sampling key 'prompt'"),
        ("vllm-generate", SamplingParams(extra={"token_ids": [1]}), "extra sampling key 'token_ids'"),
    ],
)
async def test_an_episode_tells_it_as_the_model_s(dialect: str, sampling: SamplingParams, named: str) -> None:
    async with ScriptedEngine(OPENAI) as engine:
        episode = await rehearse(HandsOn(), {}, model=model_of(engine, dialect), sampling=sampling)
        assert not engine.requests
    (error,) = episode.errors
    assert (episode.ok, episode.reward) == (False, None)
    assert (error.type, error.phase) == ("InexpressibleError", "model")
    assert named in error.message


def test_it_is_logged_whole_and_an_engine_s_words_are_not() -> None:
    for error, words in (
        (InexpressibleError("sampling parameter top_k is 5"), "sampling parameter top_k is 5"),
        (EngineRefusedError("the prompt", status=400), "status=400; the engine's words are not logged"),
    ):
        record = EpisodeError.from_exception(error, "environment")
        assert loggable(record, error, record.message).endswith(words)


def generating(sampling_params: dict[str, Any], response: Any) -> Engine:
    """vLLM, which has made `sampling_params` of the request."""
    return Engine(
        {
            "chat/completions/render": rendered(sampling_params=sampling_params),
            "/inference/v1/generate": response,
            "chat/completions/derender": derendered(),
        }
    )


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"temperature": 0.5}, f"{NEEDED}top_k is not set"),
        ({"top_p": 0.9, "min_p": 0.1}, f"{NEEDED}top_k is not set"),
        ({"top_k": 0}, f"{NEEDED}top_k is 0"),
        ({"top_k": -1, "temperature": None}, f"{NEEDED}top_k is -1"),
        ({"top_k": 5, "temperature": 0.0}, f"{NEEDED}temperature is 0.0"),
        ({"top_k": 5}, "start vLLM with --return-sampling-mask"),
        ({"top_k": "5", "temperature": []}, "start vLLM with --return-sampling-mask"),
    ],
)
async def test_a_mask_that_does_not_come_has_its_parameter_for_a_reason(
    params: dict[str, Any], why: str
) -> None:
    told = generating(params, vllm_generate(sampling_mask=None))
    answer = await DIALECTS["vllm-generate"].ask(question(), MASKS, told.post)
    assert answer.holes["sampling_mask"].startswith(f"the response has no sampling_mask; {why}")
    assert answer.sampled_ids is not None


async def test_a_mask_that_comes_all_the_same_is_taken() -> None:
    answer = await DIALECTS["vllm-generate"].ask(question(), MASKS, generating({}, vllm_generate()).post)
    assert answer.sampling_mask is not None
    assert not answer.holes


@pytest.mark.parametrize(
    ("options", "params", "status", "told"),
    [
        (MASKS, {}, 400, True),
        (MASKS, {"top_k": 5}, 400, False),
        (MASKS, {}, 404, False),
        (EngineOptions(), {}, 400, False),
    ],
)
async def test_a_refusal_names_the_parameter_where_a_mask_was_asked_for(
    options: EngineOptions, params: dict[str, Any], status: int, told: bool
) -> None:
    refusal = EngineRefusedError("its words", status=status)
    with pytest.raises(EngineRefusedError) as raised:
        await DIALECTS["vllm-generate"].ask(question(), options, generating(params, refusal).post)
    assert raised.value is refusal
    assert str(refusal) == ("its words; " + TOP_K_UNSET if told else "its words")


@pytest.mark.parametrize("masks", [True, False], ids=["with masks", "without"])
async def test_a_run_without_top_k_is_refused_by_vllm_or_has_a_hole_and_either_names_it(masks: bool) -> None:
    async with ScriptedEngine(PROFILES["vllm-0.33"], served=Served(sampling_mask=masks)) as engine:
        model = model_of(engine, "vllm-generate", options=MASKS)
        episode = await rehearse(HandsOn(), {}, model=model, sampling=SamplingParams(top_p=0.9))
    (trace,) = episode.traces
    if masks:
        (error,) = episode.errors
        assert (error.type, error.phase) == ("EngineRefusedError", "model")
        assert error.message.endswith(TOP_K_UNSET)
        assert len(trace.calls) == 1
    else:
        assert episode.ok
        assert trace.info["incomplete"]["sampling_mask"]["reason"].endswith(TOP_K_UNSET)

"""Which model a run gets: what it names, the worker's own, or the simulation; and what it must not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from env_worker.config import WorkerSettings
from env_worker.model import dialects
from env_worker.model.engine import Engine
from env_worker.model.engine_model import EngineModel
from env_worker.model.engines import DIALECTS, EndpointNotAllowedError, Engines
from env_worker.model.simulated import SimulatedModel
from env_worker.setting import SettingsError

KEY, OTHER_KEY = "ENGINES_TEST_KEY", "ENGINES_TEST_OTHER_KEY"
SECRET = "sk-secret"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (KEY, OTHER_KEY):
        monkeypatch.setenv(name, SECRET)


def engines(*arguments: str) -> Engines:
    return Engines(WorkerSettings.from_arguments(arguments, {}))


def own(*arguments: str) -> Engines:
    return engines(
        "--model-url", "http://own:8000/v1", "--model", "own-model", "--model-key-variable", KEY, *arguments
    )


def engine_of(model: Any) -> Engine:
    engine = model.engine
    assert isinstance(engine, Engine)
    assert model.name == engine.model
    assert not model.simulated
    assert SECRET.encode() not in pickle.dumps(model)
    return engine


def test_without_any_endpoint_there_is_the_simulation_alone() -> None:
    worker = engines("--seed", "7", "--accuracy", "0.25")
    for asked in ({}, {"model": "simulated"}):
        model = worker.model_for(**asked)
        assert isinstance(model, SimulatedModel)
        assert (model.seed, model.accuracy) == (7, 0.25)
    assert isinstance(worker.default, SimulatedModel)


def test_the_workers_own_engine_is_asked_where_a_run_names_none() -> None:
    worker = own("--model-dialect", "vllm-chat")
    expected = Engine("http://own:8000/v1", "own-model", "vllm-chat", {}, KEY)
    assert engine_of(worker.model_for()) == expected
    assert worker.default.name == "own-model"
    assert engine_of(worker.model_for(model="tuned", dialect="openai-chat", headers={"x-a": "1"})) == Engine(
        "http://own:8000/v1", "tuned", "openai-chat", {"x-a": "1"}, KEY
    )
    assert engine_of(worker.model_for(url="HTTP://OWN:8000/v1/")) == expected


def test_the_simulation_can_be_asked_for_beside_an_engine() -> None:
    assert isinstance(own().model_for(model="simulated"), SimulatedModel)


def test_an_allowed_endpoint_gets_no_key_that_was_not_asked_for() -> None:
    worker = own("--allow-endpoint", "http://other:1/v1", "--allow-key-variable", OTHER_KEY)
    assert engine_of(worker.model_for(url="http://other:1/v1")).key_variable == ""
    assert engine_of(worker.model_for(url="http://other:1/v1", key_variable=OTHER_KEY)) == Engine(
        "http://other:1/v1", "own-model", "openai-chat", {}, OTHER_KEY
    )
    assert engine_of(worker.model_for(url="http://other:1/v1")).api_key == ""
    assert engine_of(worker.model_for(url="http://other:1/v1", key_variable=OTHER_KEY)).api_key == SECRET


def test_the_workers_own_key_goes_to_its_own_url_alone() -> None:
    """Or a client could have it sent to any other endpoint that is allowed."""
    other = "http://other:1/v1"
    with pytest.raises(EndpointNotAllowedError, match="for that endpoint") as refused:
        own("--allow-endpoint", other).model_for(url=other, key_variable=KEY)
    assert refused.value.field == "model.api_key_variable"
    listed = own("--allow-endpoint", other, "--allow-key-variable", KEY)
    assert engine_of(listed.model_for(url=other, key_variable=KEY)).api_key == SECRET
    assert engine_of(own("--allow-endpoint", other).model_for(key_variable=KEY)).api_key == SECRET


def test_an_engine_tells_which_variables_hold_keys() -> None:
    """All of the worker's, whichever the run uses: an environment that starts programs keeps them back."""
    worker = own("--allow-endpoint", "http://other:1/v1", "--allow-key-variable", OTHER_KEY)
    for model in (worker.default, worker.model_for(url="http://other:1/v1")):
        assert isinstance(model, EngineModel)
        assert pickle.loads(pickle.dumps(model)).key_variables == {KEY, OTHER_KEY}


@pytest.mark.parametrize("key", ["sk-ant-0123456789", "abcdef0123456789", "AKIAxyz0123456789"])
def test_a_key_in_the_place_of_its_variables_name_is_not_repeated(key: str) -> None:
    with pytest.raises(EndpointNotAllowedError, match="never the key") as refused:
        own().model_for(key_variable=key)
    assert key[3:] not in str(refused.value) + refused.value.value
    with pytest.raises(EndpointNotAllowedError, match="no endpoint is asked") as refused:
        engines().model_for(key_variable=key)
    assert key[3:] not in str(refused.value) + refused.value.value


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(EndpointNotAllowedError, match="other:1/v1") as refused:
        own().model_for(url="http://user:pass-word@other:1/v1")
    assert "pass-word" not in str(refused.value) + refused.value.value


def test_what_is_known_at_the_start_to_go_wrong_is_said_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(KEY)
    with pytest.raises(SettingsError, match=f"--model-key-variable is {KEY}, but .* not set"):
        own()
    monkeypatch.setenv(KEY, f"{SECRET}\n{SECRET}")
    with pytest.raises(SettingsError, match=f"--model-key-variable is {KEY}, but .* no header") as refused:
        own()
    assert SECRET not in str(refused.value)
    monkeypatch.delenv(KEY)
    with pytest.raises(SettingsError, match="--model-routing-shape LAYERSxTOP_K"):
        engines(
            *("--model-url", "http://own", "--model", "m", "--model-dialect", "sglang-chat"),
            *("--model-arrays", "routed_experts"),
        )
    caplog.clear()
    engines("--model-url", "http://own", "--model", "m", "--allow-key-variable", KEY)
    assert f"--allow-key-variable: environment variable {KEY} of this worker is not set" in caplog.text
    assert "openai-chat: http://own gives text alone" in caplog.text
    caplog.clear()
    engines("--model-url", "http://own", "--model", "m", "--model-dialect", "vllm-chat")
    assert not caplog.text


@pytest.mark.parametrize(
    ("asked", "field", "word"),
    [
        ({"url": "http://other:1/v1"}, "model.url", "--allow-endpoint"),
        ({"url": "http://own:8000"}, "model.url", "--allow-endpoint"),
        ({"url": "http://own:8000/v1@evil"}, "model.url", "characters"),
        (
            {"url": "http://listed:2/v1", "key_variable": "PATH"},
            "model.api_key_variable",
            "--allow-key-variable",
        ),
        ({"key_variable": "HOME"}, "model.api_key_variable", "--allow-key-variable"),
        ({"url": "http://listed:2", "dialect": "grpc"}, "model.dialect", "vllm-generate"),
    ],
)
def test_what_is_on_no_list_is_refused_by_its_field(asked: dict[str, str], field: str, word: str) -> None:
    with pytest.raises(EndpointNotAllowedError) as refused:
        own("--allow-endpoint", "http://listed:2").model_for(**asked)
    assert refused.value.field == field
    assert word in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"url": "127.0.0.1:1/v1"},
            "model.url (endpoint or --endpoint in env_client) is '127.0.0.1:1/v1', but it does not begin "
            "with http:// or https:// and a host; mend it",
        ),
        (
            {"dialect": "vlm"},
            "model.dialect (dialect or --dialect in env_client) is 'vlm', but this worker speaks",
        ),
        ({"dialect": "vlm"}, "sglang-chat; name one of these"),
        ({"url": "http://other:1/v1"}, "http://engine:8000/v1; leave it out, or ask the worker's operator"),
        (
            {"key_variable": "HOME"},
            "model.api_key_variable (key_variable or --key-variable in env_client) is 'HOME'",
        ),
    ],
)
def test_a_refusal_says_what_to_do_in_the_words_of_whoever_asked(asked: dict[str, str], said: str) -> None:
    """Syntax is the caller's to mend, lists are the operator's."""
    with pytest.raises(EndpointNotAllowedError) as refused:
        own().model_for(**asked)
    assert said in str(refused.value)
    assert ("operator" in str(refused.value)) == ("on this worker's list" in str(refused.value))


def test_an_endpoint_without_a_model_to_ask_is_refused() -> None:
    worker = engines("--allow-endpoint", "http://listed:2")
    with pytest.raises(EndpointNotAllowedError, match="name one") as refused:
        worker.model_for(url="http://listed:2")
    assert refused.value.field == "model.model"


def test_a_key_variable_that_is_not_set_is_refused_and_read_anew_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = own()
    engine = engine_of(worker.model_for())
    monkeypatch.setenv(KEY, "sk-rotated")
    assert engine.api_key == "sk-rotated"
    monkeypatch.delenv(KEY)
    with pytest.raises(LookupError, match=f"{KEY} of this worker is not set"):
        _ = engine.api_key
    with pytest.raises(EndpointNotAllowedError, match=f"{KEY} of this worker is not set"):
        worker.model_for()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--model-url", "own:8000", "--model", "m"), "http:// or https://"),
        (("--model-url", "http://own:8000/v1"), "--model does not say"),
        (("--model", "m"), "--model-url"),
        (("--model-key-variable", KEY), "--model-url"),
        (("--allow-endpoint", "http://*"), "wildcard"),
        (("--model-dialect", "grpc"), "vllm-generate"),
        (("--model-arrays", "logits"), "routed_experts"),
        (("--model-routing-shape", "48"), "48x8"),
        (("--model-routing-shape", "0x8"), "48x8"),
        (("--model-experts", "0"), "expected 1 to 65536"),
        (("--model-timeout-seconds", "0"), "0.1"),
        (("--model-retries", "-1"), "0 to 100"),
        (("--model-logprobs-mode", "cooked"), "raw or processed"),
        (("--allow-key-variable", "sk-ant-123456789"), "no name of an environment variable"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_the_start(arguments: tuple[str, ...], word: str) -> None:
    with pytest.raises(SettingsError, match=r"^--") as refused:
        engines(*arguments)
    assert word in str(refused.value)
    assert "123456789" not in str(refused.value), "it may be a key that stands where a name should"


def test_lists_come_from_flags_and_from_variables() -> None:
    settings = WorkerSettings.from_arguments(
        ("--allow-endpoint", "http://a:1,http://b:2", "--allow-endpoint", "http://c:3"),
        {
            "ENV_WORKER_ALLOW_KEY_VARIABLE": "A_KEY,B_KEY",
            "ENV_WORKER_MODEL_ARRAYS": "routed_experts",
            "ENV_WORKER_MODEL_ROUTING_SHAPE": "48x8",
            "ENV_WORKER_MODEL_EXPERTS": "128",
        },
    )
    assert settings.allow_endpoint == ("http://a:1", "http://b:2", "http://c:3")
    assert settings.allow_key_variable == ("A_KEY", "B_KEY")
    assert (settings.model_arrays, settings.routing_shape, settings.model_experts) == (
        ("routed_experts",),
        (48, 8),
        128,
    )


def test_the_dialects_that_may_be_asked_for_are_those_that_there_are() -> None:
    assert set(DIALECTS) == set(dialects.DIALECTS)

"""Questions of the reasoning-gym package, tried again while wrong, scored by the package itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from env_worker.domain import Episode, InvalidTaskError, Message, SamplingParams, Trace
from env_worker.envs.base import Context
from env_worker.envs.reasoning_gym import ReasoningGymEnvironment, shelf
from env_worker.envs.reasoning_gym.catalogue import Catalogue
from env_worker.envs.reasoning_gym.shelf import Shelf, Shelves
from env_worker.envs.reasoning_gym.task import read_task
from env_worker.envs.registry import EnvironmentLoadError, EnvironmentRegistry
from env_worker.model.base import Turn
from env_worker.model.errors import EngineUnreachableError
from env_worker.model.simulated import SimulatedModel
from env_worker.testing import ScriptedModel as Script
from env_worker.testing import rehearse

EXAMPLES = Path(__file__).parents[4] / "examples/tasks/reasoning_gym.jsonl"
EXAMPLE_TASKS = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]


class ScriptedModel:
    """Answers with the given texts, in order; `None` stands for the reference. Fails when asked once more."""

    name = "scripted"
    simulated = True

    def __init__(self, *answers: str | None) -> None:
        self._answers = list(answers)
        self.references: list[str | None] = []

    async def chat(
        self,
        trace: Trace,
        messages: Any,
        *,
        parent: int | None = None,
        sampling: SamplingParams | None = None,
        tools: Any = (),
        reference: str | None = None,
    ) -> Turn:
        self.references.append(reference)
        answer = self._answers.pop(0)
        for message in messages:
            parent = trace.add_node(message, parent=parent)
        message = Message.assistant(str(reference) if answer is None else answer)
        return Turn(trace.add_node(message, parent=parent, sampled=True), message, "stop")


@pytest.fixture(scope="module")
def environment() -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment()


async def play(environment: ReasoningGymEnvironment, task: dict[str, Any], model: Any) -> Trace:
    episode = Episode("episode", "reasoning-gym", task)
    await environment.run(Context("run", task, SamplingParams(), model, episode))
    (trace,) = episode.traces
    assert trace.finished_at is not None
    return trace


def test_the_examples_are_32_tasks_of_several_data_sets() -> None:
    assert len({json.dumps(task) for task in EXAMPLE_TASKS}) == 32
    assert 6 <= len({task["dataset"] for task in EXAMPLE_TASKS}) <= 8


@pytest.mark.parametrize("task", EXAMPLE_TASKS, ids=lambda task: f"{task['dataset']}-{task['index']}")
async def test_each_example_builds_and_its_reference_scores_one(
    environment: ReasoningGymEnvironment, task: dict[str, Any]
) -> None:
    environment.validate(task)
    right = await play(environment, task, SimulatedModel(accuracy=1.0))
    assert right.reward == 1.0
    assert dict(right.metrics) == {"first_try": 1.0, "tries": 1.0}
    wrong = await play(environment, task, SimulatedModel(accuracy=0.0))
    assert wrong.reward is not None
    assert wrong.reward < 1.0
    assert wrong.metrics["tries"] == 3.0


async def test_a_wrong_answer_is_tried_again(environment: ReasoningGymEnvironment) -> None:
    model = ScriptedModel("thinking <answer>nothing</answer>", None)
    trace = await play(environment, {"dataset": "chain_sum", "seed": 3}, model)
    assert trace.reward == 1.0
    assert dict(trace.metrics) == {"first_try": 0.0, "tries": 2.0}
    assert [node.message.role for node in trace.nodes] == ["system", "user", "assistant", "user", "assistant"]
    assert "wrong" in trace.nodes[3].message.text
    assert trace.stop_condition == "solved"
    assert dict(trace.info) == {"dataset": "chain_sum", "index": 0}
    assert len(set(model.references)) == 1


async def test_the_last_answer_counts_and_tries_end(environment: ReasoningGymEnvironment) -> None:
    task = {"dataset": "chain_sum", "max_tries": 2}
    trace = await play(environment, task, ScriptedModel("<answer>x</answer>", "<answer>y</answer>"))
    assert trace.reward == 0.0
    assert trace.stop_condition == "max_tries"


async def test_an_answer_that_breaks_its_scorer_is_wrong(environment: ReasoningGymEnvironment) -> None:
    trace = await play(
        environment, {"dataset": "prime_factorization", "max_tries": 1}, ScriptedModel("banana")
    )
    assert trace.reward == 0.0


@pytest.mark.parametrize("text", ["exit()", "<answer>quit()</answer>", "{", "", "<answer></answer>"])
@pytest.mark.parametrize("dataset", ["n_queens", "string_insertion", "spiral_matrix", "binary_matrix"])
async def test_an_answer_that_a_scorer_evaluates_ends_nothing(
    environment: ReasoningGymEnvironment, dataset: str, text: str
) -> None:
    trace = await play(environment, {"dataset": dataset, "max_tries": 1}, ScriptedModel(text))
    assert trace.reward == 0.0


async def test_an_engine_that_fails_after_a_wrong_answer_is_no_zero(
    environment: ReasoningGymEnvironment,
) -> None:
    model = Script("<answer>nothing</answer>", EngineUnreachableError("the connection broke"))
    episode = await rehearse(environment, {"dataset": "chain_sum"}, model=model)
    (trace,) = episode.traces
    assert not episode.ok
    assert [(error.type, error.phase, error.message) for error in episode.errors] == [
        ("EngineUnreachableError", "model", "the connection broke")
    ]
    assert trace.reward is None
    assert not trace.rewards
    assert trace.stop_condition != "max_tries"


async def test_an_answer_that_was_cut_off_and_one_without_text_are_scored_as_they_are(
    environment: ReasoningGymEnvironment,
) -> None:
    task = {"dataset": "chain_sum", "max_tries": 2}
    episode = await rehearse(environment, task, model=Script("I think that <answer>12", ""))
    assert (episode.ok, episode.reward) == (True, 0.0)


async def test_what_a_model_is_asked(environment: ReasoningGymEnvironment) -> None:
    from reasoning_gym.utils import SYSTEM_PROMPTS

    for given, prompt in ({}, "default"), ({"system_prompt": "direct"}, "direct"):
        model = Script("<answer>x</answer>")
        await rehearse(environment, {"dataset": "gcd", "max_tries": 1, **given}, model=model)
        ((system, question),) = model.asked
        assert (system.role, system.text) == ("system", SYSTEM_PROMPTS[prompt])
        assert (question.role, "Greatest Common Divisor" in question.text) == ("user", True)


async def test_a_scorer_that_cannot_score_its_own_reference_is_an_error(
    environment: ReasoningGymEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reasoning_gym.arithmetic.gcd import GCDDataset

    def broken(self: object, answer: str, entry: dict[str, Any]) -> float:
        raise RuntimeError("out of order")

    monkeypatch.setattr(GCDDataset, "score_answer", broken)
    with pytest.raises(RuntimeError, match="out of order"):
        await play(environment, {"dataset": "gcd"}, ScriptedModel("banana"))


async def test_a_data_set_without_a_reference_is_scored_all_the_same(
    environment: ReasoningGymEnvironment,
) -> None:
    model = ScriptedModel("<answer>no colouring</answer>")
    trace = await play(environment, {"dataset": "graph_color", "max_tries": 1}, model)
    assert model.references == [None]
    assert trace.reward == 0.0


async def test_building_and_scoring_leave_the_loop_s_thread(
    environment: ReasoningGymEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    for method in ("entry", "score"):
        original = getattr(Shelf, method)

        def recording(*arguments: Any, _original: Any = original) -> Any:
            threads.append(threading.current_thread())
            return _original(*arguments)

        monkeypatch.setattr(Shelf, method, recording)
    await play(environment, {"dataset": "gcd"}, ScriptedModel(None))
    assert len(threads) == 2
    assert threading.current_thread() not in threads


def test_a_data_set_is_built_once_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "CACHED_DATASETS", 2)
    catalogue = Catalogue()
    shelves = Shelves(catalogue)

    def of(**fields: int) -> Shelf:
        return shelves.of(read_task({"dataset": "gcd", **fields}, {}, catalogue))

    first = of(index=1)
    assert of(index=2) is first
    for seed in (1, 2):
        of(seed=seed)
    assert len(shelves) == 2
    assert of() is not first


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({}, "'dataset' is missing: give a string"),
        ({"dataset": 3}, r"'dataset' is 3 \(int\)"),
        ({"dataset": "chain_sums"}, "'chain_sums' is none of .* did you mean 'chain_sum'"),
        ({"dataset": "gcd", "indexx": 1}, "'indexx' is unknown .*'index'"),
        ({"dataset": "gcd", "index": 500}, "'index' is 500, but the dataset has 500 entries"),
        ({"dataset": "gcd", "index": -1}, "'index' is -1"),
        ({"dataset": "gcd", "max_tries": 0}, "'max_tries' is 0"),
        ({"dataset": "gcd", "params": []}, r"'params' is \[\]"),
        ({"dataset": "gcd", "params": {"no_such": 1}}, "'gcd' refused .*no_such.* `python -m .* gcd` lists"),
        ({"dataset": "gcd", "params": {"min_numbers": -1}}, "'gcd' refused .*AssertionError"),
        ({"dataset": "gcd", "params": {"seed": 1}}, "give it as task key 'seed'"),
        ({"dataset": "gcd", "params": {"size": 10**9}}, "'size' in task key 'params' is 1000000000"),
        ({"dataset": "gcd", "params": {"size": True}}, "'size' in task key 'params' is True"),
        ({"dataset": "composite"}, "'composite', which is a mix: say of what in task key 'datasets'"),
        ({"dataset": "gcd", "system_prompt": "defualt"}, r"'defualt', no system prompt .*'default'"),
        ({"dataset": "gcd", "size": 9}, "'size' is unknown"),
    ],
)
async def test_a_bad_task_is_refused_before_the_first_trace(
    environment: ReasoningGymEnvironment, task: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidTaskError, match=named):
        environment.validate(task)
    episode = Episode("episode", "reasoning-gym", task)
    with pytest.raises(InvalidTaskError):
        await environment.run(Context("run", task, SamplingParams(), SimulatedModel(), episode))
    assert not episode.traces


async def test_a_larger_size_gives_more_entries(environment: ReasoningGymEnvironment) -> None:
    task = {"dataset": "gcd", "index": 700, "params": {"size": 701}}
    assert (await play(environment, task, ScriptedModel(None))).reward == 1.0


async def test_one_data_set_can_be_served_alone() -> None:
    served = EnvironmentRegistry(["reasoning-gym:gcd", "sums=reasoning-gym:chain_sum"])
    assert served.names == ("reasoning-gym:gcd", "sums")
    only = served.get("sums")
    assert isinstance(only, ReasoningGymEnvironment)
    assert (await play(only, {}, ScriptedModel(None))).info["dataset"] == "chain_sum"
    with pytest.raises(InvalidTaskError, match="'gcd', but this environment was started with 'dataset'"):
        only.validate({"dataset": "gcd"})
    with pytest.raises(EnvironmentLoadError, match="did you mean 'gcd'"):
        EnvironmentRegistry(["reasoning-gym:gdc"])


def test_without_a_c_compiler_all_but_the_zebra_puzzles_are_served() -> None:
    code = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pycosat":
            raise ModuleNotFoundError(name)
        return None

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "pycosat" else found(name, package)
sys.meta_path.insert(0, Missing())

from env_worker.domain import InvalidTaskError
from env_worker.envs.reasoning_gym import ReasoningGymEnvironment

environment = ReasoningGymEnvironment()
environment.validate({"dataset": "chain_sum"})
assert "pycosat" not in sys.modules
try:
    environment.validate({"dataset": "zebra_puzzles"})
except InvalidTaskError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "'zebra_puzzles', which this worker cannot build: it needs the package pycosat" in ran.stdout


def test_with_pycosat_zebra_puzzles_are_served() -> None:
    assert importlib.util.find_spec("pycosat") is not None, "the test environment has a C compiler"
    ReasoningGymEnvironment().validate({"dataset": "zebra_puzzles"})

"""Mixes of reasoning-gym datasets, and the files that an environment is started with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from reasoning_gym.composite import CompositeConfig, CompositeDataset

from env_worker.domain import InvalidTaskError
from env_worker.envs.reasoning_gym import ReasoningGymEnvironment
from env_worker.envs.registry import EnvironmentRegistry
from env_worker.model.simulated import SimulatedModel
from env_worker.testing import ScriptedModel, rehearse

if TYPE_CHECKING:
    from pathlib import Path

    from env_worker.domain import Trace

PARTS: list[dict[str, Any]] = [
    {"name": "chain_sum", "weight": 2, "params": {"max_terms": 4}},
    {"name": "knight_swap"},
    {"name": "graph_color", "weight": 0.5, "params": {"seed": 3}},
]
PACKAGE_FILE = """
seed: 7
size: 40
datasets:
  - name: chain_sum
    weight: 2
    config: {max_terms: 4}
  - name: knight_swap
    weight: 1
    config: {}
  - name: graph_color
    weight: 0.5
    config: {seed: 3}
"""


@pytest.fixture(scope="module")
def environment() -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment()


@pytest.fixture
def package_file(tmp_path: Path) -> Path:
    path = tmp_path / "mix.yaml"
    path.write_text(PACKAGE_FILE)
    return path


async def play(environment: ReasoningGymEnvironment, task: dict[str, Any], model: Any) -> Trace:
    episode = await rehearse(environment, task, model=model)
    assert episode.ok, episode.errors
    return episode.traces[0]


async def test_a_mix_asks_what_the_package_s_composite_asks(
    environment: ReasoningGymEnvironment, package_file: Path
) -> None:
    served = ReasoningGymEnvironment(str(package_file))
    composite = CompositeDataset(CompositeConfig.from_yaml(str(package_file)))
    met = set()
    for index in (0, 1, 8, 12, 13, 15, 17, 19):
        entry = composite[index]
        met.add(entry["metadata"]["source_dataset"])
        for one, task in (
            (environment, {"datasets": PARTS, "size": 40, "seed": 7, "index": index}),
            (served, {"index": index}),
        ):
            trace = await play(one, {**task, "max_tries": 1}, ScriptedModel("<answer>no</answer>"))
            assert trace.nodes[1].message.text == entry["question"]
            assert dict(trace.info) == {"dataset": entry["metadata"]["source_dataset"], "index": index}
            assert trace.reward == composite.score_answer("no", entry)
    assert met == {"chain_sum", "knight_swap", "graph_color"}


async def test_each_entry_of_a_mix_is_scored_by_its_own_dataset(environment: ReasoningGymEnvironment) -> None:
    parts = [{"name": "chain_sum"}, {"name": "gcd"}, {"name": "word_sorting"}]
    scored = set()
    for index in range(9):
        trace = await play(environment, {"datasets": parts, "index": index}, SimulatedModel(accuracy=1.0))
        assert trace.reward == 1.0
        scored.add(trace.info["dataset"])
    assert scored == {"chain_sum", "gcd", "word_sorting"}


async def test_a_mix_is_the_same_each_time(environment: ReasoningGymEnvironment) -> None:
    task = {"datasets": PARTS, "seed": 11, "index": 3, "max_tries": 1}
    asked = []
    for one in (environment, ReasoningGymEnvironment()):
        model = ScriptedModel("no")
        await play(one, task, model)
        asked.append(model.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("task", "named"),
    [
        ({"datasets": []}, r"'datasets' is \[\] \(list\), but must be a list of at least one object"),
        ({"datasets": ["gcd"]}, r"'datasets' is \['gcd'\]"),
        ({"datasets": {}}, "'datasets' is {}"),
        ({"datasets": [{}]}, r"'datasets\[0\].name' is missing"),
        ({"datasets": [{"name": "gdc"}]}, r"'datasets\[0\].name' is 'gdc'.*did you mean 'gcd'"),
        ({"datasets": [{"name": "gcd"}, {"name": "gcd"}]}, r"'datasets\[1\].name' is 'gcd', which is one"),
        ({"datasets": [{"name": "composite"}]}, r"'datasets\[0\].name' is 'composite', which is a mix"),
        ({"datasets": [{"name": "gcd", "wieght": 1}]}, r"'datasets\[0\].wieght' is unknown .*'weight'"),
        ({"datasets": [{"name": "gcd", "weight": 0}]}, r"'datasets\[0\].weight' is 0, but must be between"),
        ({"datasets": [{"name": "gcd", "weight": "1"}]}, r"'datasets\[0\].weight' is '1' \(str\)"),
        ({"datasets": [{"name": "gcd", "params": 1}]}, r"'datasets\[0\].params' is 1 \(int\)"),
        (
            {"datasets": [{"name": "gcd", "params": {"min_numbers": -1}}]},
            r"'gcd' refused task key 'datasets\[0\].params'.*AssertionError",
        ),
        (
            {"datasets": [{"name": "gcd", "params": {}, "config": {}}]},
            r"'datasets\[0\].params' and 'datasets\[0\].config' are the same",
        ),
        (
            {"datasets": [{"name": "gcd", "params": {"seed": -1}}]},
            r"'datasets\[0\].params.seed' is -1, but must be between 0",
        ),
        (
            {"datasets": [{"name": "gcd", "params": {"size": 499}}]},
            r"'size' in task key 'datasets\[0\].params' is 499, but any of the mix's 500 entries",
        ),
        ({"datasets": PARTS, "size": 0}, "'size' is 0, but must be between 1 and 1000000"),
        (
            {"datasets": PARTS, "index": 500},
            "'index' is 500, .* has 500 .*raise task key 'size'",
        ),
        (
            {"datasets": PARTS, "dataset": "gcd"},
            r"'dataset' \('gcd'\) and 'datasets' are .*remove one of them",
        ),
        ({"datasets": PARTS, "params": {}}, "'params' is unknown"),
    ],
)
def test_a_bad_mix_is_refused(environment: ReasoningGymEnvironment, task: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidTaskError, match=named):
        environment.validate(task)


async def test_a_file_fixes_keys_of_all_tasks(tmp_path: Path) -> None:
    sums, mix = tmp_path / "sums.json", tmp_path / "mix.toml"
    sums.write_text(json.dumps({"dataset": "chain_sum", "params": {"max_terms": 2}, "max_tries": 1}))
    mix.write_text('max_tries = 2\n[[datasets]]\nname = "gcd"\n[[datasets]]\nname = "lcm"\nweight = 3.0\n')
    served = EnvironmentRegistry([f"sums=reasoning-gym:{sums}", f"reasoning-gym:{mix}"])
    assert served.names == ("sums", f"reasoning-gym:{mix}")
    only = served.get("sums")
    assert isinstance(only, ReasoningGymEnvironment)
    trace = await play(only, {"seed": 5, "index": 2}, ScriptedModel("no"))
    assert trace.info["dataset"] == "chain_sum"
    only.validate({"dataset": "chain_sum", "params": {"max_terms": 2}})
    for task, named in (
        ({"params": {"max_terms": 3}}, "'params' is {'max_terms': 3}, but this environment was started with"),
        ({"datasets": PARTS}, "'datasets' is .*started with 'dataset' 'chain_sum' for all tasks"),
        ({"max_tries": 2}, "'max_tries' is 2, but this environment was started with 'max_tries' 1"),
    ):
        with pytest.raises(InvalidTaskError, match=named):
            only.validate(task)

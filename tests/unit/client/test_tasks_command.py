"""The command `env-client tasks`: tasks of reasoning-gym as JSON lines."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from reasoning_gym.composite import CompositeConfig, CompositeDataset
from reasoning_gym.factory import create_dataset

from env_client.batch import read_tasks
from env_client.cli import main
from env_client.config import ClientSettings
from env_client.task_source import read_task_set
from env_worker.envs.reasoning_gym import ReasoningGymEnvironment
from tests.helpers.documents import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MIX = {
    "seed": 42,
    "size": 60,
    "datasets": [
        {"name": "chain_sum", "weight": 2, "config": {"max_terms": 4}},
        {"name": "knight_swap", "weight": 1, "config": {}},
        {"name": "graph_color", "weight": 0.5, "config": {"seed": 3}},
    ],
}


@pytest.fixture
def mix(tmp_path: Path) -> str:
    path = tmp_path / "mix.json"
    path.write_text(json.dumps(MIX))
    return str(path)


def test_tasks_of_one_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--dataset", "chain_sum", "--count", "2", "--seed", "7", "--params", '{"max_terms": 4}']
    assert main(["tasks", *arguments]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"dataset": "chain_sum", "seed": 7, "index": index, "params": {"size": 500, "max_terms": 4}}
        for index in range(2)
    ]
    assert err == "2 tasks of chain_sum\n"


def test_what_it_writes_is_what_run_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tasks.jsonl"
    assert main(["tasks", "--dataset", "knight_swap", "--out", str(out)]) == 0
    tasks = read_tasks(str(out))
    assert [task["index"] for task in tasks] == list(range(500)), "as many as it has entries"
    assert capsys.readouterr().out == ""
    environment = ReasoningGymEnvironment()
    for task in tasks:
        environment.validate(task)


def test_a_mix_s_tasks_are_the_entries_of_the_package_s_composite(mix: str) -> None:
    with open(mix) as file:
        composite = CompositeDataset(CompositeConfig.from_yaml_stream(file))
    tasks = read_task_set(mix)
    assert (len(tasks), str(tasks)) == (60, "chain_sum, knight_swap and graph_color")
    assert tasks.check() is None
    environment = ReasoningGymEnvironment()
    served = ReasoningGymEnvironment(mix)
    met = set()
    for task in tasks:
        environment.validate(task)
        served.validate({"index": task["index"]})
        met.add(task["dataset"])
        if task["index"] < 12:
            dataset = create_dataset(task["dataset"], seed=task["seed"], **task["params"])
            assert dataset[task["index"]] == composite[task["index"]]
    assert met == {"chain_sum", "knight_swap", "graph_color"}


def test_a_mix_without_a_size_has_as_many_entries_as_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "mix.toml"
    path.write_text('max_tries = 1\n[[datasets]]\nname = "gcd"\n[[datasets]]\nname = "lcm"\nweight = 3.0\n')
    tasks = list(read_task_set(str(path), seed=9, count=600))
    assert {(task["params"]["size"], task["max_tries"]) for task in tasks} == {(600, 1)}
    assert {(task["dataset"], task["seed"]) for task in tasks} == {("gcd", 10), ("lcm", 11)}
    assert len(read_task_set(str(path))) == 500


def test_a_file_of_one_dataset(tmp_path: Path) -> None:
    path = tmp_path / "sums.yaml"
    path.write_text("dataset: chain_sum\nseed: 3\nparams: {size: 20}\nsystem_prompt: direct\n")
    task = {"dataset": "chain_sum", "seed": 3, "params": {"size": 20}, "system_prompt": "direct"}
    assert list(read_task_set(str(path))) == [{**task, "index": index} for index in range(20)]
    assert next(iter(read_task_set(str(path), seed=4)))["seed"] == 4


def test_without_the_package_names_are_not_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    assert main(["tasks", "--dataset", "no_such", "--count", "1"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["dataset"] == "no_such"
    assert "reasoning-gym is not installed here (" in err
    assert "names and params were not checked here, a worker will" in err


def test_without_yaml_the_next_step_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "mix.yaml"
    path.write_text("dataset: gcd\n")
    assert main(["tasks", "--dataset", str(path)]) == 2
    assert "install PyYAML, or write the file as .json or .toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--dataset is not set"),
        (["--dataset", ""], "dataset is ''; give the name of a dataset"),
        (["--dataset", "chain_sums"], "no dataset 'chain_sums'; did you mean 'chain_sum'?"),
        (["--dataset", "gcd", "--params", "{"], "--params is '{'"),
        (["--dataset", "gcd", "--params", "[]"], "--params is a JSON list"),
        (["--dataset", "gcd", "--params", '{"x": NaN}'], "--params: Out of range float values"),
        (["--dataset", "gcd", "--params", '{"x": 1}'], "'gcd' refuses the params {\"x\": 1} (TypeError"),
        (["--dataset", "gcd", "--params", '{"seed": 1}'], "params has a seed; give it as --seed"),
        (["--dataset", "gcd", "--params", '{"size": 0}'], "params.size is 0; give an integer from 1"),
        (
            ["--dataset", "gcd", "--params", '{"size": 3}', "--count", "4"],
            "--count is 4, but",
        ),
        (["--dataset", "gcd", "--count", "1000001"], "--count is 1000001, but the dataset has 1000000"),
        (["--dataset", "gcd", "--count", "0"], "--count is 0, expected 1 to"),
        (["--dataset", "gcd", "--seed", "-1"], "--seed is -1, expected 0 to 4294967295"),
        (["--dataset", "no/such.json"], "--dataset no/such.json: [Errno 2]"),
        (["--dataset", "gcd", "--count", "1", "--out", "no/such/file"], "--out no/such/file"),
    ],
)
def test_usage(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENV_CLIENT_BROKER", raising=False)
    assert main(["tasks", *arguments]) == 2
    out, err = capsys.readouterr()
    assert named in err
    assert out == ""


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ([], "found a list; give an object"),
        ({}, "dataset is missing; give the name"),
        ({"dataset": "gcd", "sead": 1}, "sead is no key of it; did you mean 'seed'?"),
        ({"dataset": "gcd", "params": {}, "seed": 1.5}, "seed is 1.5; give an integer from 0"),
        (
            {"dataset": "gcd", "index": 3},
            "index (3) fixes one entry, and a task is written for each; leave it",
        ),
        ({"datasets": [{"name": "gcd"}], "index": 3}, "index (3) fixes one entry"),
        ({"datasets": []}, "datasets is []; give a list of at least one object"),
        ({"datasets": [{"name": "gcd"}], "params": {}}, "params is no key of it"),
        ({"datasets": [{"name": "gcd"}], "dataset": "lcm"}, "dataset ('lcm') and datasets are both given"),
        ({"datasets": [{"name": "gcd"}, {"name": "gcd"}]}, "datasets[1].name is 'gcd' again"),
        ({"datasets": [{"name": "gcd", "weight": 0}]}, "datasets[0].weight is 0; give a number from 1e-06"),
        ({"datasets": [{"name": "gcd", "params": 1}]}, "datasets[0].params is 1; give an object"),
        ({"datasets": [{"name": "gcd", "params": {}, "config": {}}]}, "datasets[0].config are the same"),
        (
            {"datasets": [{"name": "gcd", "params": {"size": 9}}]},
            "'gcd' has a size of 9, but any of",
        ),
        ({"datasets": [{"name": "gcd"}], "seed": 2**32 - 1}, "--seed is 4294967295, but the mix's datasets"),
    ],
)
def test_a_bad_file(found: Any, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(found))
    assert main(["tasks", "--dataset", str(path)]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.toml", "="), ("a.yaml", "[1")])
def test_a_file_that_cannot_be_read(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["tasks", "--dataset", str(path)]) == 2
    assert f"correct what is no {name[2:].upper()}" in capsys.readouterr().err
    assert main(["tasks", "--dataset", str(path), "--params", "{}"]) == 2
    assert "--params is given beside a file" in capsys.readouterr().err


def test_the_example_is_a_mix_that_both_sides_read() -> None:
    path = str(ROOT / "examples/tasks/mix.yaml")
    tasks = read_task_set(path, count=8)
    assert tasks.check() is None
    assert {task["dataset"] for task in tasks} > {"chain_sum"}
    assert CompositeConfig.from_yaml(path).size == 1000
    ReasoningGymEnvironment(path).validate({"index": 999})


def test_it_needs_no_broker() -> None:
    assert ClientSettings(dataset="gcd").broker is None

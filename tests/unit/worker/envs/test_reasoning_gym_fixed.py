"""What `reasoning-gym:` is started with: files that are refused, how it describes itself, what there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.envs.reasoning_gym import ReasoningGymEnvironment
from env_worker.envs.reasoning_gym.__main__ import main as listing
from env_worker.envs.reasoning_gym.catalogue import Catalogue
from env_worker.envs.registry import EnvironmentLoadError, EnvironmentRegistry

if TYPE_CHECKING:
    from pathlib import Path

PARTS: list[dict[str, Any]] = [
    {"name": "chain_sum", "weight": 2, "params": {"max_terms": 4}},
    {"name": "knight_swap"},
    {"name": "graph_color", "weight": 0.5, "config": {"seed": 3}},
]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.json", "{", r"a\.json is no JSON \(JSONDecodeError: .*\): correct it there"),
        ("a.yaml", "[1", r"a\.yaml is no YAML \(ParserError: .*line 1.*\): correct it there"),
        ("a.toml", "=", r"a\.toml is no TOML \(TOMLDecodeError: .*\): correct it there"),
        ("a.json", "[]", r"a\.json holds \[\] \(list\), but must be an object: write keys of a task"),
        ("a.yml", "", r"a\.yml holds None \(NoneType\), but must be an object"),
        ("a.json", '{"seed": 1}', r"has the keys \['seed'\], but no 'dataset', .*: add one of them"),
        ("a.json", "{}", r"has the keys \[\], but no 'dataset', .*: add one of them"),
        (
            "a.yaml",
            "dataset: gcd\nparams: {all: [{since: 2020-01-01}]}",
            r"key 'params\.all\[0\]\.since' is datetime\.date\(2020, 1, 1\) .*: write it as a text in quotes",
        ),
        ("a.yaml", "dataset: gcd\nparams: {2020-01-01: 1}", r"params has the key datetime\.date.*in quotes"),
        (
            "a.json",
            '{"dataset": "gcd", "seed": NaN}',
            "key 'seed' is nan, but must be finite: write a number",
        ),
        ("a.yaml", "&a {dataset: gcd, params: *a}", "nests too deeply, or holds itself: write it flatter"),
        (
            "a.json",
            '{"dataset": "gdc"}',
            r"a\.json: task key 'dataset' is 'gdc': .*did you mean 'gcd'\? `python",
        ),
        (
            "a.json",
            '{"dataset": "gcd", "params": {"x": 1}}',
            r"dataset 'gcd' refused .*reasoning_gym gcd` lists",
        ),
        (
            "a.json",
            '{"dataset": "gcd", "params": {"size": 0}}',
            "'size' in task key 'params' is 0, but must be .*: set it to one, or leave it out",
        ),
        (
            "a.json",
            '{"datasets": [{"name": "gcd"}], "size": 0}',
            r"a\.json: task key 'size' is 0, but must be between 1 and 1000000",
        ),
        (
            "a.json",
            '{"dataset": "gcd", "datasets": [{"name": "lcm"}]}',
            r"a\.json: task keys 'dataset' \('gcd'\) and 'datasets' are both given, .*: remove one of them",
        ),
        ("a.json", None, r"cannot be read from /.* \(FileNotFoundError: No such file .*\): give the path"),
        (".json", None, r"\.json cannot be read"),
    ],
)
def test_a_bad_file_is_refused_before_the_worker_serves(
    tmp_path: Path, name: str, text: str | None, named: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(EnvironmentLoadError, match=named):
        EnvironmentRegistry([f"reasoning-gym:{path}"])


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff{}")
    with pytest.raises(EnvironmentLoadError, match=r"a\.json is not UTF-8 .*: save it as that"):
        EnvironmentRegistry([f"reasoning-gym:{path}"])


def test_keys_that_are_numbers_become_texts_as_json_has_them(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("dataset: gcd\n1: 2\n")
    with pytest.raises(EnvironmentLoadError, match="task key '1' is unknown: remove it"):
        EnvironmentRegistry([f"reasoning-gym:{path}"])


def test_what_is_neither_a_dataset_nor_a_file() -> None:
    with pytest.raises(EnvironmentLoadError, match=r"'mix.yam' is none of .* ends in \.json, \.toml"):
        EnvironmentRegistry(["reasoning-gym:mix.yam"])
    with pytest.raises(EnvironmentLoadError, match=r"'chain_smu' .*mean 'chain_sum' or .*\? `python"):
        EnvironmentRegistry(["reasoning-gym:chain_smu"])
    with pytest.raises(EnvironmentLoadError, match=r"'xyz' is none of the \d+ of .* `python -m \S+` lists"):
        EnvironmentRegistry(["reasoning-gym:xyz"])


# Descriptions.


def described(tmp_path: Path, keys: dict[str, Any]) -> str:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys))
    return ReasoningGymEnvironment(str(path)).description


def test_a_description_names_datasets_and_what_is_fixed(tmp_path: Path) -> None:
    assert "each task names its dataset" in ReasoningGymEnvironment().description
    assert ReasoningGymEnvironment("gcd").description == "gcd of reasoning-gym"
    fixed = {"dataset": "chain_sum", "params": {"max_terms": 4}, "max_tries": 1, "system_prompt": "simple"}
    assert described(tmp_path, fixed) == (
        "chain_sum (max_terms 4) of reasoning-gym; fixed: max_tries 1, system_prompt 'simple'"
    )
    assert described(tmp_path, {"datasets": PARTS, "seed": 7}) == (
        "a mix of 3 datasets of reasoning-gym: chain_sum (weight 2, max_terms 4), "
        "knight_swap, graph_color (weight 0.5, seed 3); fixed: seed 7"
    )


def test_a_description_is_bounded(tmp_path: Path) -> None:
    told = [{"name": name, "weight": 1.5} for name in ("chain_sum", "gcd", "lcm", "word_sorting", "products")]
    told += [{"name": name} for name in ("number_sorting", "spell_backward", "letter_counting", "countdown")]
    text = described(tmp_path, {"datasets": told})
    assert text.startswith(f"a mix of {len(told)} datasets of reasoning-gym: ")
    assert len(text) == 200
    assert text.endswith("...")


# What there is.


def test_datasets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing([]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == sorted(names)
    assert {"chain_sum", "gcd", "zebra_puzzles"} < set(names)
    assert "composite" not in names


def test_the_params_of_a_dataset_are_listed_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing(["chain_sum"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert {"max_terms = 6", "allow_negation = false", "size = 500"} <= set(told)
    assert not any(line.startswith("seed") for line in told)
    for name in Catalogue().names:
        assert listing([name]) == 0


def test_a_dataset_that_is_none_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert listing(["chain_sums"]) == 2
    assert "did you mean 'chain_sum'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["chain_sum"], ["--help"]])
def test_a_reader_that_has_read_enough_gets_no_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        finished = subprocess.run(
            [sys.executable, "-m", "env_worker.envs.reasoning_gym", *arguments],
            stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=50, check=False,
        )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (0, "")


def test_without_the_package_it_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert listing([]) == 2
    assert "pip install 'envtrio[reasoning-gym]'" in capsys.readouterr().err

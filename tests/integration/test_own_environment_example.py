"""The template for an environment of one's own: its tests, and the ways in which it is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from env_worker.envs.registry import EnvironmentRegistry

EXAMPLE = Path(__file__).parents[2] / "examples/own_environment"


def test_the_tests_of_the_template_pass(tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"),
        *("-c", str(EXAMPLE / "pyproject.toml"), "--rootdir", str(EXAMPLE), str(EXAMPLE / "tests")),
    )
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "12 passed" in ran.stdout


@pytest.mark.parametrize("spec", ["guessing-game", "guessing_game:GuessingGame"])
def test_it_is_served_by_its_entry_point_and_by_its_place(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an installation leaves of the template, of which the entry point is read.
    record = tmp_path / "guessing_game-0.1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: guessing-game\nVersion: 0.1.0\n")
    text = (EXAMPLE / "pyproject.toml").read_text()
    points = text.partition('[project.entry-points."envtrio.environments"]\n')[2].partition("\n\n")[0]
    name, _, place = points.replace('"', "").partition(" = ")
    (record / "entry_points.txt").write_text(f"[envtrio.environments]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = EnvironmentRegistry((spec,))
    assert registry.names == ("guessing-game",)
    assert type(registry.get("guessing-game")).__name__ == "GuessingGame"

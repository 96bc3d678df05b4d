"""What is said at the start of a worker, when an environment cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from env_worker.envs.registry import EnvironmentLoadError, EnvironmentRegistry
from tests.extras.verifiers.stage import CALC

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _tasksets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "tasksets"))


def refused(folder: Path, content: Any) -> str:
    path = folder / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(EnvironmentLoadError) as error:
        EnvironmentRegistry([f"verifiers:{path}"])
    said = str(error.value)
    assert str(path) in said
    return said


def test_an_environment_that_is_not_installed() -> None:
    with pytest.raises(EnvironmentLoadError, match=r"id 'no-such-taskset'.*not found"):
        EnvironmentRegistry(["verifiers:no-such-taskset"])


def test_fields_are_named(tmp_path: Path) -> None:
    taskset = {"id": "vfdemo-calc", "n": "many"}
    assert "field 'taskset.n' is 'many': Input should be a valid integer" in refused(
        tmp_path, {**CALC, "taskset": taskset}
    )
    assert "field 'agent.max_turn'" in refused(tmp_path, {**CALC, "agent": {"max_turn": 3}})
    assert "field 'retries.max_retries' is -1" in refused(tmp_path, {**CALC, "retries": {"max_retries": -1}})
    train = {"env": CALC, "client": {"type": "train", "multiplex": 0}}
    assert "field 'client.multiplex' is 0" in refused(tmp_path, train)
    lost = {"env": CALC, "client": {"type": "train", "renderer_model_name": "/models/none"}}
    assert "field 'client.renderer_model_name' is '/models/none'" in refused(tmp_path, lost)
    assert "taskset" in refused(tmp_path, {"id": "best-of-n"})

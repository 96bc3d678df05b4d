"""The containers of docker-compose.yml take every setting that there is."""

from __future__ import annotations

import importlib
import re
import shlex
from typing import Any

import pytest

from env_broker.config import settings_table as broker_settings
from env_worker.config import settings_table as worker_settings
from tests.helpers.documents import ROOT

OWN_VALUES = {
    "worker": {"ENV_WORKER_LISTEN", "ENV_WORKER_BROKER", "ENV_WORKER_EXIT_WITH_STDIN", "ENV_WORKER_INSECURE"},
    "broker": {
        "ENV_BROKER_LISTEN",
        "ENV_BROKER_INSECURE",
        # Of local workers.
        *(f"ENV_BROKER_{name}WORKERS" for name in ("", "MIN_", "MAX_")),
        *("ENV_BROKER_IDLE_SECONDS", "ENV_BROKER_ENV", "ENV_BROKER_HOOK", "ENV_BROKER_MAX_CONCURRENT"),
        *("ENV_BROKER_LATE_CANCEL_SECONDS", "ENV_BROKER_ISOLATE", "ENV_BROKER_STUCK_SECONDS"),
        *("ENV_BROKER_LINGER_SECONDS", "ENV_BROKER_KILL_SECONDS"),
    },
}
"""What follows from the containers themselves, or from the image."""


@pytest.fixture(scope="module")
def services() -> Any:
    yaml: Any = importlib.import_module("yaml")
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.parametrize(
    ("service", "variables"),
    [
        ("worker", [row.variable for row in worker_settings()]),
        ("broker", [row.variable for row in broker_settings()]),
    ],
)
def test_every_setting_is_passed_on(services: Any, service: str, variables: list[str]) -> None:
    given = [entry.partition("=")[0] for entry in services[service]["environment"]]
    in_command = re.findall(r"\$\{(ENV_WORKER_\w+):-\$\$\{\1:-", str(services[service]["command"]))
    passed = {name for name in (*given, *in_command) if name.startswith("ENV_")}
    assert passed == set(variables) - OWN_VALUES[service]
    assert len(given) == len(set(given))


def test_an_image_of_ones_own_brings_its_environments_and_its_hook(services: Any) -> None:
    """A bare name in `environment` that is not set outside would be unset in the container."""
    worker = services["worker"]
    assert worker["image"] == "${ENVTRIO_IMAGE:-envtrio}"
    assert "build" not in worker, "the image of one's own would be overwritten"
    assert services["broker"]["image"] == services["client"]["image"] == "envtrio"
    assert not {"ENV_WORKER_HOOK", "ENV_WORKER_ENV"} & set(worker["environment"])
    shell, flag, line = worker["command"]
    assert (shell, flag) == ("sh", "-c")
    words = shlex.split(line)
    assert words[:3] == ["exec", "env-worker", "serve"], "it is told to end itself, not its shell"
    hook = words[words.index("--hook") + 1]
    assert hook == "${ENV_WORKER_HOOK:-$${ENV_WORKER_HOOK:-examples.counting_hook:hook}}"


def test_workers_share_the_memory_of_their_host_whatever_their_number(services: Any) -> None:
    worker = services["worker"]
    replicas = worker["deploy"]["replicas"]
    assert replicas == "${ENVTRIO_WORKERS:-2}"
    assert f"ENV_WORKER_ARRAY_WORKERS=${{ENV_WORKER_ARRAY_WORKERS:-{replicas}}}" in worker["environment"]


def test_an_engine_on_the_host_has_a_name(services: Any) -> None:
    assert services["worker"]["extra_hosts"] == ["host.docker.internal:host-gateway"]

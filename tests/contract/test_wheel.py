"""What is released: a wheel that runs on the oldest versions that it claims, without a toolchain."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.helpers.pools import QUICK_STOP, ROOT, serving

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "protos", "env_worker", "env_broker", "env_client")
PROTOS = (
    "delta",
    "env_service",
    "episode",
    "errors",
    "pool_service",
    "registry_service",
    "training_array_service",
)
SERVICES = ("env_service", "pool_service", "registry_service", "training_array_service")


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel and the floors of its requirements."""

    wheel: Path
    bin: Path
    floors: dict[str, str]

    def ask(self, code: str, directory: Path) -> str:
        """What `python -c code` prints there, away from the repository."""
        command = [str(self.bin / "python"), "-c", code]
        return subprocess.check_output(command, cwd=directory, text=True)


def floors() -> dict[str, str]:
    """The lowest version of each requirement. Of numpy any will do: its floor is too old for new Pythons."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {}
    for requirement in map(Requirement, project["dependencies"]):
        [specifier] = requirement.specifier
        assert specifier.operator == ">="
        found[requirement.name] = specifier.version
    del found["numpy"]
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Builds from a copy, so that nothing is left in the repository and nothing that lies there gets in."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source, target = ROOT / name, directory / "source" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", directory, directory / "source")
    [wheel] = directory.glob("*.whl")
    constraints = directory / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in floors().items()))
    venv.create(directory / "venv", with_pip=True)
    binaries = directory / "venv" / "bin"
    _run(binaries / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel)
    return Installed(wheel, binaries, floors())


def test_the_wheel_has_stubs_types_and_protos(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    wanted = {f"{package}/py.typed" for package in ("env_worker", "env_broker", "env_client", "envtrio")}
    for proto in PROTOS:
        wanted |= {f"envtrio/v1/{proto}{ending}" for ending in (".proto", "_pb2.py", "_pb2.pyi")}
    for service in SERVICES:
        wanted |= {f"envtrio/v1/{service}_pb2_grpc.py", f"envtrio/v1/{service}_pb2_grpc.pyi"}
    assert wanted <= names
    assert {name.split("/")[0] for name in names if not name.startswith("envtrio-")} == {
        "env_worker",
        "env_broker",
        "env_client",
        "envtrio",
    }


def test_the_floors_are_installed_and_no_toolchain(installed: Installed, tmp_path: Path) -> None:
    versions = f"{{name: m.version(name) for name in {list(installed.floors)}}}"
    code = f"import importlib.metadata as m, json; print(json.dumps({versions}))"
    found = {name: Version(version) for name, version in json.loads(installed.ask(code, tmp_path)).items()}
    assert found == {name: Version(floor) for name, floor in installed.floors.items()}
    find = "import importlib.util as u; print(u.find_spec('grpc_tools'), u.find_spec('reasoning_gym'))"
    assert installed.ask(find, tmp_path).split() == ["None", "None"]


def test_the_stubs_are_the_installed_ones(installed: Installed, tmp_path: Path) -> None:
    where = installed.ask("from envtrio.v1 import env_service_pb2 as e; print(e.__file__)", tmp_path)
    assert where.startswith(str(installed.bin.parent))


async def test_one_episode(installed: Installed, tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "episodes.jsonl"
    tasks.write_text(json.dumps({"turns": 2, "tokens_per_turn": 40, "layers": 2}) + "\n")
    python = installed.bin / "python"
    options = ("--env", "synthetic", *QUICK_STOP)
    async with serving("env_worker", *options, python=python, directory=tmp_path) as server:
        arguments = ("--broker", server.address, "--env", "synthetic", "--tasks", tasks, "--out", out)
        client = await asyncio.create_subprocess_exec(
            *(installed.bin / "env-client", "run", *arguments, "--count", "1", "--concurrency", "1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        said, _ = await asyncio.wait_for(client.communicate(), 60)
    assert client.returncode == 0, said.decode()
    [episode] = map(json.loads, out.read_text().splitlines())
    assert "simulated" in said.decode()
    assert len(episode["traces"][0]["nodes"]) == 4


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

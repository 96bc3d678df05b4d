"""What harnesses start is marked and swept, and ends with the worker, however that ends."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from env_worker.envs.verifiers import offline
from env_worker.envs.verifiers.harness import Harness
from env_worker.envs.verifiers.processes import MARK_VARIABLE, kill, marked
from env_worker.envs.verifiers.reaping import Reaper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 20.0
PROGRAM = """# /// script
# requires-python = ">=3.10"
# dependencies = ["json", "os>=1.0"]
# ///
print("hello")
"""


@pytest.fixture
def asleep() -> Iterator[Callable[[str], psutil.Process]]:
    """Starts processes that only sleep, in sessions of their own, with a mark."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: str) -> psutil.Process:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys, time; print(flush=True); time.sleep(300)"],
            env={**os.environ, MARK_VARIABLE: mark},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def await_end(*processes: psutil.Process) -> None:
    _, alive = psutil.wait_procs(processes, timeout=SECONDS)
    assert not alive


def test_a_sweep_kills_what_is_of_the_run_and_nothing_else(asleep: Callable[[str], psutil.Process]) -> None:
    mark = secrets.token_hex(8)
    mine, other, server = asleep(f"{mark}/1"), asleep(f"{mark}/12"), asleep(mark)
    stranger = asleep(secrets.token_hex(8))
    assert [name.split()[0] for name in kill(marked(mark, "1"))] == [str(mine.pid)]
    await_end(mine)
    assert not any(map(ended, (other, server, stranger)))
    assert len(kill(marked(mark))) == 2
    await_end(other, server)
    assert not ended(stranger)


@pytest.mark.parametrize("way", ["killed", "reap", "end"])
def test_the_reaper(way: str, tmp_path: Path, asleep: Callable[[str], psutil.Process]) -> None:
    mark = secrets.token_hex(8)
    folder, ports = tmp_path / "work" / mark, tmp_path / f"port-*{mark}*"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / f"port-x{mark}x").touch()
    (tmp_path / "port-other").touch()
    escaped = asleep(f"{mark}/run")
    if way == "killed":
        program = (
            "import sys; from pathlib import Path; from env_worker.envs.verifiers.reaping import Reaper\n"
            "reaper = Reaper(sys.argv[1], Path(sys.argv[2]), sys.argv[3]); reaper.start()\n"
            "print(reaper._process.pid, flush=True); sys.stdin.read()"
        )
        worker = subprocess.Popen(
            [sys.executable, "-c", program, mark, str(folder), str(ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with worker:
            assert worker.stdout is not None
            reaper = psutil.Process(int(worker.stdout.readline()))
            reaper.send_signal(signal.SIGTERM)  # as one to the whole service, which the worker outlives
            worker.kill()
        await_end(reaper)
    else:
        held = Reaper(mark, folder, str(ports))
        held.start()
        assert held._process is not None
        reaper = psutil.Process(held._process.pid)
        held.start()
        assert held._process.pid == reaper.pid, "started twice"
        getattr(held, way)()
        assert held._process is None
        await_end(reaper)
    if way == "end":
        assert not ended(escaped)
        assert folder.exists()
        return
    await_end(escaped)
    assert not folder.exists()
    assert sorted(path.name for path in tmp_path.glob("port-*")) == ["port-other"]


def test_a_reaper_that_is_killed_is_replaced_at_once(
    tmp_path: Path, asleep: Callable[[str], psutil.Process], caplog: pytest.LogCaptureFixture
) -> None:
    mark = secrets.token_hex(8)
    escaped = asleep(f"{mark}/run")
    held = Reaper(mark, None, str(tmp_path / "none-*"))
    held.start()
    first = held._process
    assert first is not None
    first.kill()
    end = time.monotonic() + SECONDS
    while held._process is first:
        assert time.monotonic() < end, "another has not taken its place"
        time.sleep(0.01)
    assert f"process {first.pid}, which ends what is left" in caplog.text
    assert not psutil.pid_exists(first.pid), "a zombie"
    assert not ended(escaped)
    held.reap()
    await_end(escaped)
    assert held._process is None
    assert len(caplog.records) == 1, "an end that was wanted was taken for another"


@pytest.fixture(params=["0.4.0", "0.4.1"])
def package(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    """Modules of the package, with what is exchanged in them."""
    monkeypatch.setenv(MARK_VARIABLE, "")

    class OwnRuntime:
        def process_env(self, env: dict[str, str]) -> dict[str, str]:
            return {"OF": "task", **env}

    home = "verifiers.v1.runtimes" + (".backends" if request.param == "0.4.1" else "")
    table: dict[str, str] = {}
    backend = SimpleNamespace(scripts_dir=str(tmp_path / "scripts"), _interpreters=table)
    names: dict[str, dict[str, Any]] = {
        "verifiers": {}, "verifiers.v1": {}, "verifiers.v1.mcp": {}, "verifiers.v1.harnesses": {},
        "verifiers.v1.harnesses.utils": {},
        "verifiers.v1.runtimes": {"Runtime": OwnRuntime},
        home: {"Runtime": OwnRuntime},
        f"{home}.subprocess": {
            "CACHE_DIR": tmp_path,
            "SubprocessBackend" if request.param == "0.4.1" else "SubprocessRuntime": backend,
            "_UV_INTERPRETERS": table,
        },
        "verifiers.v1.mcp.launch": {"uuid": __import__("uuid")},
        "verifiers.v1.harnesses.utils.launch": {"CHAT_PROGRAM_SOURCE": PROGRAM},
    }  # fmt: skip
    modules = {}
    for name, content in names.items():
        module = modules[name] = ModuleType(name)
        module.__dict__.update(content)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    return {
        "runtime": OwnRuntime,
        "subprocess": modules[f"{home}.subprocess"],
        "launch": modules["verifiers.v1.mcp.launch"],
        "program": modules["verifiers.v1.harnesses.utils.launch"],
        "table": table,
    }


def test_what_is_started_is_marked(package: dict[str, Any], tmp_path: Path) -> None:
    harness = Harness()
    assert os.environ[MARK_VARIABLE] == harness.mark
    runtime = package["runtime"]()
    assert runtime.process_env({"A": "b"}) == {"OF": "task", "A": "b"}, "it is of no run"
    harness.enter()
    harness.enter()
    harness.prepare(("SOME_TOKEN", "OTHER_TOKEN"))
    hidden = {"SOME_TOKEN": "", "OTHER_TOKEN": ""}
    assert runtime.process_env({}) == {"OF": "task", **hidden}, "of what is started for all runs"
    with harness.run() as run:
        found = runtime.process_env({"A": "b"})
        assert found == {"OF": "task", "A": "b", MARK_VARIABLE: f"{harness.mark}/{run}", **hidden}
        assert runtime.process_env({"SOME_TOKEN": "mine"})["SOME_TOKEN"] == "mine"
    folder = package["subprocess"].CACHE_DIR
    assert folder == tmp_path / "envtrio" / harness.mark
    folder.mkdir(parents=True)
    names = package["launch"].uuid
    port_file = Path(f"/tmp/vf-port-{names.uuid4().hex}")
    assert names.uuid4().hex[:8] != names.uuid4().hex[:8], "names of which the beginning is used collide"
    port_file.touch()
    with harness.run() as run:
        of_run = Path(f"/tmp/vf-port-{names.uuid4().hex}")
    of_run.touch()
    harness.sweep("another")
    assert of_run.exists()
    harness.sweep(run)
    assert not of_run.exists()
    assert port_file.exists(), "another run's"
    harness.leave(orderly=True)
    assert port_file.exists(), "another environment is served yet"
    harness.leave(orderly=True)
    assert not folder.exists()
    assert not port_file.exists()


def test_where_something_runs_on_the_reaper_ends_it(
    package: dict[str, Any], asleep: Callable[[str], psutil.Process]
) -> None:
    harness = Harness()
    harness.enter()
    harness.prepare(())
    with harness.run() as run:
        escaped = asleep(f"{harness.mark}/{run}")
    harness.leave(orderly=False)
    await_end(escaped)


def test_a_sweep_says_what_it_killed(
    package: dict[str, Any], asleep: Callable[[str], psutil.Process], caplog: pytest.LogCaptureFixture
) -> None:
    harness = Harness()
    harness.sweep("1")
    assert not caplog.text
    escaped = asleep(f"{harness.mark}/1")
    harness.sweep("1")
    assert f"1 processes that a run left behind were killed: {escaped.pid} " in caplog.text


def test_a_version_that_has_it_no_longer(package: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    del sys.modules["verifiers.v1.runtimes"].Runtime  # type: ignore[attr-defined]
    del package["subprocess"].CACHE_DIR
    Harness()
    assert "may outlive it" in caplog.text
    assert "leaves work directories behind" in caplog.text


def test_the_chat_program_is_started_with_this_interpreter(package: dict[str, Any], tmp_path: Path) -> None:
    assert offline.preseed()
    [(path, interpreter)] = package["table"].items()
    assert (Path(path).read_text(), interpreter) == (PROGRAM, sys.executable)
    assert Path(path).parent == tmp_path / "scripts"
    assert [one.name for one in Path(path).parent.iterdir()] == [Path(path).name]


def test_or_uv_prepares_it(package: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    package["program"].CHAT_PROGRAM_SOURCE = PROGRAM.replace("json", "no-such-package==1")
    assert not offline.preseed()
    assert "no_such_package are not installed here" in caplog.text
    del package["program"].CHAT_PROGRAM_SOURCE
    assert not offline.preseed()
    assert package["table"] == {}

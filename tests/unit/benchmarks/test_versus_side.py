"""A driver that fails is a reason, and leaves nothing behind; our own plays a round on a real pool."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.versus.load import Order, play
from benchmarks.versus.notes import VARIABLE, Notes
from benchmarks.versus.ours_driver import open_subject
from benchmarks.versus.peer_home import VERSION, PeerMissing, peer_python
from benchmarks.versus.side import Side, SideFailed
from benchmarks.versus.workloads import OURS, PEER, Shape, Workload
from env_client import ArraysNotFoundError

READY = 'print(json.dumps({"ready": {"versions": {"python": "3"}}}), flush=True)'
ORDER = Order(1, 1, first_number=0, turns=1)


def interpreter(folder: Path, *lines: str) -> Path:
    """What takes a driver's place: runs those lines whatever it is asked to run."""
    script = folder / "script.py"
    script.write_text("\n".join(("import json, subprocess, sys, time", *lines)))
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    path.chmod(0o700)
    return path


def side(folder: Path, *lines: str, name: str = OURS) -> Side:
    return Side(name, "small", interpreter(folder, *lines), folder / "log")


async def test_orders_are_answered_and_the_end_of_the_input_ends_it(tmp_path: Path) -> None:
    echo = 'for line in sys.stdin: print(json.dumps({"figures": json.loads(line)}), flush=True)'
    async with side(tmp_path, READY, echo) as running:
        assert running.versions == {"python": "3"}
        figures = await running.play(ORDER, 30.0)
    assert (figures["episodes"], figures["concurrency"]) == (1, 1)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param(
            ['print("no broker", file=sys.stderr)', "sys.exit(3)"], "log ends with: no broker", id="start"
        ),
        pytest.param(["sys.exit(3)"], r"^its process has ended$", id="silent"),
    ],
)
async def test_a_driver_that_does_not_start_says_why(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(SideFailed, match=reason):
        async with side(tmp_path, *lines):
            pytest.fail("it has started")


async def test_a_round_that_failed_has_the_drivers_reason(tmp_path: Path) -> None:
    answer = 'for line in sys.stdin: print(json.dumps({"failed": "1 of 1"}), flush=True)'
    async with side(tmp_path, READY, answer) as running:
        with pytest.raises(SideFailed, match=r"^1 of 1$"):
            await running.play(ORDER, 30.0)
        with pytest.raises(SideFailed, match=r"^1 of 1$"):
            await running.play(ORDER, 30.0)


async def test_a_driver_that_ends_in_a_round(tmp_path: Path) -> None:
    async with side(tmp_path, READY, "sys.stdin.readline()") as running:
        with pytest.raises(SideFailed, match="its process has ended"):
            await running.play(ORDER, 30.0)
        with pytest.raises(SideFailed, match="its process has ended"):
            await running.play(ORDER, 30.0)


async def test_a_silent_driver_and_what_it_started_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.versus.side._KILL_SECONDS", 0.1)
    child = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=2)'
    async with side(tmp_path, child, READY, "time.sleep(600)") as running:
        [driver] = [one for one in psutil.Process().children() if str(tmp_path) in " ".join(one.cmdline())]
        [started] = driver.children()
        with pytest.raises(SideFailed, match="no answer within 0 s"):
            await running.play(ORDER, 0.1)
    _, left = psutil.wait_procs([driver, started], 10.0)
    assert not left


def test_a_python_without_the_peer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerMissing, match=r"has verifiers None, expected 0\.4\.1"):
        peer_python(tmp_path / "peer", tmp_path / "missing")
    assert not (tmp_path / "peer").exists()


def test_a_given_python_may_be_named_from_this_folder_or_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = tmp_path / "environment/bin"
    environment.mkdir(parents=True)
    (tmp_path / "real").write_text(f"#!/bin/sh\n[ $(basename $0) = python ] && echo {VERSION}\n")
    (tmp_path / "real").chmod(0o700)
    python = environment / "python"
    python.symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert peer_python(tmp_path / "peer", Path("environment/bin/python")) == python
    monkeypatch.setenv("PATH", str(environment), prepend=os.pathsep)
    assert peer_python(tmp_path / "peer", Path("python")) == python


def test_the_peers_driver_has_its_plugin_and_no_stubs_of_ours_on_its_path(tmp_path: Path) -> None:
    paths = side(tmp_path, name=PEER)._variables()["PYTHONPATH"]
    assert "protos" not in paths
    assert paths.endswith("peer_path")


async def test_our_driver_plays_keeps_and_fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(tmp_path / "notes")
    monkeypatch.setenv(VARIABLE, str(notes.path))
    workload = Workload("tiny", Shape(2, 8, layers=2, top_k=2), 4, ours=8, peer=8)
    async with open_subject(workload) as subject:
        assert len(set(subject.processes)) == 3
        kept: list[Any] = []
        finish = subject.finish

        async def finish_and_tell(*, fetch: bool) -> None:
            kept.extend(subject._references)
            await finish(fetch=fetch)

        monkeypatch.setattr(subject, "finish", finish_and_tell)
        for number, fetch in enumerate((False, True)):
            figures = await play(Order(8, 4, first_number=number * 8, turns=2, fetch=fetch), subject, notes)
            assert all(figures[f"{name}_cpu_ms"] for name in ("client", "broker", "worker"))
            assert figures["deltas_per_s"]
            assert len(kept) == 8 * (number + 1)
            for reference in kept:
                with pytest.raises(ArraysNotFoundError):
                    await subject._trainer.fetch(reference)
    assert not any(psutil.pid_exists(pid) for pid in (subject.processes.broker, *subject.processes.workers))

"""`make run`'s job cleans up after itself, whenever it is interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from tests.helpers.pools import ROOT

MARK = "ENVTRIO_TEST_DEMO"
# Says when a process was started. In a shell's background SIGINT is ignored; here the demo must hear it.
CODE = """
import os, runpy, signal, subprocess
signal.signal(signal.SIGINT, signal.default_int_handler)

class Told(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print("started", flush=True)
        if os.environ.get("ENVTRIO_TEST_INTERRUPT") == str(len(started)):
            os.kill(os.getpid(), signal.SIGTERM)
        started.append(self)

started = []

subprocess.Popen = Told
runpy.run_path("examples/demo.py", run_name="__main__")
"""


async def run_demo(mark: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", CODE, cwd=ROOT, env={**os.environ, MARK: mark, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


def marked(mark: str) -> list[int]:
    """The processes that carry the mark, wherever they have been handed on to."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # it has ended meanwhile
            if f"{MARK}={mark}".encode() in environment and state not in "ZX":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("caught", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["the broker was started", "it listens", "the client was started"])
async def test_interrupted_it_leaves_nothing_behind(moment: str, caught: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    process = await run_demo(mark)
    assert process.stdout is not None
    lines = ["the broker was started", "it listens", "the client was started"].index(moment) + 1
    for expected in ("started", "a broker listens on", "started")[:lines]:
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        assert line.startswith(expected)
    process.send_signal(caught)
    await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130
    assert marked(mark) == []


@pytest.mark.parametrize("process", ["0", "1"], ids=["the broker", "the client"])
async def test_interrupted_while_it_starts_a_process_it_leaves_nothing_behind(process: str) -> None:
    mark = uuid.uuid4().hex
    interrupted = await run_demo(mark, ENVTRIO_TEST_INTERRUPT=process)
    # All that it started has closed its output, or this would wait for it.
    await asyncio.wait_for(interrupted.communicate(), 20)
    assert interrupted.returncode == 130
    assert marked(mark) == []


async def test_it_runs_32_tasks_of_several_kinds() -> None:
    mark = uuid.uuid4().hex
    process = await run_demo(mark)
    out, _ = await asyncio.wait_for(process.communicate(), 50)
    assert process.returncode == 0
    assert b"32 of 32 runs have an outcome, 0 of them an exception" in out
    assert b"right at a seeded rate" in out
    assert b"training arrays kept by the workers" in out
    assert marked(mark) == []

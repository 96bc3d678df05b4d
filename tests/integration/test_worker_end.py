"""The end of a worker's process: what it takes along, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from env_worker.leftovers import MARK_VARIABLE
from tests.helpers.gate import Gate
from tests.helpers.history import History
from tests.helpers.pools import ROOT
from tests.helpers.snapshot import alive
from tests.helpers.stub_client import StubClient
from tests.helpers.writing_hook import WRITTEN

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 20.0
SCRIPT = 'sleep 1000 >&- 2>&- & echo $!; exec "$@"'
FLAGS = ("--hook", "tests.helpers.writing_hook:WritingHook", "--linger-seconds", "0", "--exit-with-stdin")


async def test_a_hooks_own_processes_finish_and_nobody_elses_are_touched(tmp_path: Path) -> None:
    """A script starts something and becomes the worker by exec; all of it in an environment of another
    worker, whose mark it has inherited, as `--exit-with-stdin` may be."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), MARK_VARIABLE: "0" * 32, WRITTEN: str(tmp_path)}
    gate = Gate(tmp_path / "gate")
    outer = await asyncio.create_subprocess_exec("sleep", "1000", env=variables)
    beside = 0  # until it has said so
    worker = await asyncio.create_subprocess_exec(
        *("sh", "-c", SCRIPT, "sh", sys.executable, "-m", "env_worker", "serve", "--env", "synthetic"),
        *("--listen", "127.0.0.1:0", *FLAGS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=variables,
    )
    assert worker.stdin is not None
    try:
        beside = int(await said(worker, ""))
        address = (await said(worker, "listening on ")).split()[-1]
        async with StubClient(address, History()) as client:
            outcome = await client.run({"turns": 1, "tokens_per_turn": 5})
        assert outcome.code == "OK"
        worker.stdin.close()
        await said(worker, "stopped, nothing was lost")
        gate.open()
        assert await asyncio.wait_for(worker.wait(), SECONDS) == 0
        assert (tmp_path / outcome.run).exists()
        assert alive(beside)
        assert alive(outer.pid)
    finally:
        gate.close()
        for pid in filter(alive, (beside, outer.pid)):
            os.kill(pid, signal.SIGKILL)
        await outer.wait()
        if worker.returncode is None:
            worker.kill()
        await worker.wait()


async def said(worker: asyncio.subprocess.Process, words: str) -> str:
    """Its next line with these words."""
    assert worker.stdout is not None
    async with asyncio.timeout(SECONDS):
        while words not in (line := (await worker.stdout.readline()).decode()) or not line:
            assert line, f"it ended before it said {words!r}"
        return line

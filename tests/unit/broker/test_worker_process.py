"""The process of a local worker: its pipes, its end, and whose its id is after that."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import NoReturn

import psutil
import pytest

from env_broker.ending import Ending
from env_broker.leftovers import kill_leftovers
from env_broker.log_tail import LogTail
from env_broker.worker_process import WorkerProcess
from tests.helpers.snapshot import open_files
from tests.helpers.stub_client import new_id

PATIENCE = 10
BEREAVES = (
    "import os, signal, sys\n"
    "if os.fork() == 0:\n"
    "    print('left', os.getpid(), flush=True)\n"
    "    signal.pause()\n"
    "sys.exit(7)"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def test_its_id_is_nobody_elses_until_it_is_reaped() -> None:
    process = WorkerProcess.start(python(BEREAVES), {})
    async with asyncio.timeout(PATIENCE):
        said = b""
        async for data in process.output():
            said += data
            if said.endswith(b"\n"):
                break
        assert await process.wait() == 7
    assert process.ended
    process.signal(signal.SIGKILL)  # nobody's any more
    left = int(said.split()[-1])
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert os.getpgid(left) == process.pid
    assert any(name.startswith(f"{left} ") for name in kill_leftovers("no mark", process.pid))
    process.close()
    process.reap()
    assert not psutil.pid_exists(process.pid)


async def test_a_signal_that_ends_it_is_its_code() -> None:
    process = WorkerProcess.start(python("import signal; signal.pause()"), {})
    process.signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == -signal.SIGTERM
    process.close()
    process.reap()


async def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(24, "Too many open files")

    def no_thread(_: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    before, real = open_files(os.getpid()), os.pipe
    pipes = iter([real, fail])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", lambda: next(pipes)())
        with pytest.raises(OSError, match="Too many open files"):
            WorkerProcess.start(python("pass"), {})
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", fail)
        with pytest.raises(OSError, match="Too many open files"):
            WorkerProcess.start(python("pass"), {})
    children = psutil.Process().children()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            WorkerProcess.start(python("import signal; signal.pause()"), {})
    assert psutil.Process().children() == children
    assert open_files(os.getpid()) == before


@pytest.mark.parametrize(
    "line",
    ["{}", "run {}.", "run_{}", "{0}{0}", "cafe{}", "{}cafe", "{1}", "{2}", "id={}-1", "{}" + 790 * "x"],
)
def test_last_words_hold_no_request_id(line: str) -> None:
    run = new_id()
    dashed = "-".join((run[:8], run[8:12], run[12:16], run[16:20], run[20:]))
    tail = LogTail()
    tail.feed((line.format(run, dashed, run.upper()) + "\n").encode())
    words = Ending.of(0, "instance", 1, 1.0, "", tail).words.lower()
    assert "its last lines: " in words
    assert not any(part in words for part in (run[8:], run[-9:], dashed[8:], run[:9], dashed[:9]))


def test_last_words_keep_what_is_no_id() -> None:
    tail = LogTail()
    tail.feed(b"File 0123456789abcdef, line 20240131 of 12345678-1234, digest " + b"0123456789abcdef" * 4)
    tail.finish()
    words = Ending.of(0, "instance", 1, 1.0, "", tail).words
    assert "File 0123456789abcdef, line 20240131 of 12345678-1234, digest 01234567" in words

"""A process that holds on to its lifeline ends with whoever started it, though it holds its interpreter."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

import pytest

from env_worker.isolate import lifeline
from tests.helpers.pools import ROOT

STARTER = """
import os, subprocess, sys, time
reading, writing = os.pipe()
command = [sys.executable, "-c", sys.argv[1], str(reading), sys.argv[2]]
inner = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(reading,), start_new_session=True)
print(inner.pid, inner.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""
HOLDER = """
import ctypes, fcntl, subprocess, sys
from env_worker.isolate import lifeline

def refuse(*arguments):
    raise OSError("not here")

if sys.argv[2] == "refused":
    fcntl.fcntl = refuse
started = subprocess.Popen(["sleep", "600"])
lifeline.hold_on(int(sys.argv[1]))
print(started.pid, flush=True)
ctypes.PyDLL(None).sleep(600)
"""


@pytest.mark.parametrize(("kernel", "ended"), [("allowed", 2), ("refused", 1)])
def test_it_ends_with_its_starter(kernel: str, ended: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, HOLDER, kernel],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    ) as starter:
        assert starter.stdout is not None
        processes = [os.pidfd_open(int(pid)) for pid in starter.stdout.readline().split()]
        assert not select.select(processes, [], [], 0)[0], "both are there"
        starter.kill()
    for process in processes[:ended]:
        assert select.select([process], [], [], 5.0)[0]
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)


def test_a_child_that_the_worker_forks_holds_no_end_of_it() -> None:
    reading, writing = lifeline.new()
    if (child := os.fork()) == 0:
        try:
            os.fstat(writing)
        except OSError:
            lifeline.let_go(lifeline.new()[1])  # whoever forks may start such processes of its own
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert not select.select([reading], [], [], 0)[0]
    lifeline.let_go(writing)
    assert select.select([reading], [], [], 0)[0]
    os.close(reading)


def test_a_worker_that_has_ended_already_ends_it_at_once() -> None:
    script = """
import os, sys
from env_worker.isolate import lifeline
reading, writing = os.pipe()
os.close(writing)
os.setsid()
lifeline.hold_on(reading)
print("still here")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        env={"PYTHONPATH": str(ROOT)},
        timeout=20,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (-9, b"")
    assert b"its worker is gone" in ran.stderr

"""What signals mean to a worker's process and to the children that its environments fork."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, multiprocessing, os, signal, threading
from env_worker.stop_signals import StopSignals

came = []
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
signals = StopSignals(lambda: came.append("at start"))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # inherited, or by a module that is imported
signals.install()
assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, "or nobody learns how a child ended"
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a module does that is imported

def terminate_children():
    # One that is terminated before it has run a single line, and so over and over.
    context = multiprocessing.get_context("fork")
    for _ in range(50):
        child = context.Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(10)
        assert child.exitcode == -signal.SIGTERM, child.exitcode

async def serve():
    stop = asyncio.Event()
    signals.serving(asyncio.get_running_loop(), lambda name: (came.append(name), stop.set()))
    await asyncio.to_thread(terminate_children)
    assert not stop.is_set()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.wait_for(stop.wait(), 10)
    came.append("serving")

asyncio.run(serve())
os.kill(os.getpid(), signal.SIGTERM)  # the loop is closed
signals.over()
os.kill(os.getpid(), signal.SIGTERM)
signals.restore()
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
print(*came)
"""


def test_from_its_first_line_to_its_last() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "at start SIGINT serving\n", "")

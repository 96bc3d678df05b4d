"""What a worker's environments have started ends with it, wherever it has hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from env_worker.leftovers import MARK_VARIABLE, Leftovers
from tests.helpers.snapshot import alive

if TYPE_CHECKING:
    from collections.abc import Iterator

START = """
import os, subprocess, sys, time
from env_worker.leftovers import Leftovers
leftovers = Leftovers()
leftovers.mark(inherited=len(sys.argv) > 1)
"""
END = """
print(*pids, flush=True)
killed = leftovers.end()
print(len(killed), flush=True)
"""

CHILD = "pids = [subprocess.Popen(['sleep', '1000']).pid]"
OWN_SESSION = "pids = [subprocess.Popen(['sleep', '1000'], start_new_session=True).pid]"
PARENT_GONE = """
shell = subprocess.run(['sh', '-c', 'setsid sleep 1000 >&- 2>&- & echo $!'], stdout=subprocess.PIPE)
pids = [int(shell.stdout)]
"""
FORKED = """
pid = os.fork()
if pid == 0:
    os.setsid()
    time.sleep(1000)
pids = [pid]
"""
GRANDCHILD = """
shell = subprocess.Popen(['sh', '-c', 'sleep 1000 >&- 2>&- & echo $!; wait'], stdout=subprocess.PIPE)
pids = [shell.pid, int(shell.stdout.readline())]
"""
WITHOUT_MARK = "pids = [subprocess.Popen(['sleep', '1000'], env={'PATH': os.environ['PATH']}).pid]"


def run(script: str, *arguments: str, **variables: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True, text=True, timeout=30, check=True, env={**os.environ, **variables},
    )  # fmt: skip
    return ran.stdout.splitlines()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of another worker."""
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK_VARIABLE: "0" * 32}) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "start", [CHILD, OWN_SESSION, PARENT_GONE, FORKED, GRANDCHILD, WITHOUT_MARK], ids=range(6)
)
def test_what_was_started_is_killed_and_nothing_else(start: str, bystander: subprocess.Popen[bytes]) -> None:
    pids, killed = run(START + start + END)
    assert len(pids.split()) == int(killed)
    assert not any(alive(int(pid)) for pid in pids.split())
    assert alive(bystander.pid)


def test_by_the_mark_that_a_broker_set_it_finds_also_who_was_forked_twice_without_an_exec() -> None:
    twice = """
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.write(write, b"%d" % os.getpid())
        os.closerange(0, 3)
        time.sleep(1000)
    os._exit(0)
os.wait()
pids = [int(os.read(read, 20))]
"""
    pids, killed = run(START + twice + END, "inherited", **{MARK_VARIABLE: "1" * 32})
    assert killed == "1"
    assert not alive(int(pids))


def test_a_worker_that_an_environment_started_ends_nothing_of_the_one_around_it() -> None:
    """As that one's environment is inherited, it may have the mark of its broker."""
    outer = f"""
import os, subprocess, sys
sibling = subprocess.Popen(["sleep", "1000"])
inner = subprocess.run([sys.executable, "-c", {START + CHILD + END!r}], stdout=subprocess.PIPE, text=True)
print(inner.stdout.split()[1], sibling.poll())
sibling.kill()
"""
    assert run(outer, **{MARK_VARIABLE: "2" * 32}) == ["1 None"]


def test_whoever_it_descends_from_is_spared() -> None:
    outer = f"""
import os, subprocess, sys
inner = subprocess.run([sys.executable, "-c", {START + CHILD + END!r}, "inherited"], stdout=subprocess.PIPE)
print(inner.returncode)
"""
    assert run(outer, **{MARK_VARIABLE: "3" * 32}) == ["0"]


def test_what_frees_shared_memory_ends_by_itself_when_it_has_done_so() -> None:
    share = """
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=1)
pids = [memory.name]
"""
    name, killed = run(START + share + END)
    assert killed == "0"
    assert not (Path("/dev/shm") / name).exists()


def test_whoever_only_speaks_of_the_resource_tracker_is_ended() -> None:
    speaks = "pids = [subprocess.Popen(['sh', '-c', 'sleep 1000; : resource_tracker']).pid]"
    assert run(START + speaks + END)[1] in ("1", "2")


def test_what_was_there_before_is_spared_with_what_it_starts() -> None:
    """As of a script that starts something and becomes the worker by exec."""
    earlier = """
import subprocess
shell = subprocess.Popen(
    ["sh", "-c", "read start; sleep 1000 >&- 2>&- & echo $!; wait"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
"""
    later = r"""
shell.stdin.write(b"now\n")
shell.stdin.flush()
later = int(shell.stdout.readline())
"""
    check = """
print(shell.poll(), os.path.exists(f"/proc/{later}"))
os.kill(later, 9)
shell.kill()
"""
    _, killed, left = run(earlier + START + later + CHILD + END + check)
    assert (killed, left) == ("1", "None True")


def test_orphans_that_come_to_it_are_spared_unless_they_have_its_mark() -> None:
    """As to the first process of a container, and to one that asked for them."""
    adopt = """
import ctypes
ctypes.CDLL(None).prctl(36, 1)
orphan = "sleep 1000 >&- 2>&- & echo $!"
def start(**variables):
    return int(subprocess.run(["sh", "-c", orphan], stdout=subprocess.PIPE, env=variables).stdout)
foreign = start(PATH=os.environ["PATH"])
pids = [start(**os.environ)]
"""
    check = """
print(os.path.exists(f"/proc/{foreign}"))
os.kill(foreign, 9)
"""
    pids, killed, left = run(START + adopt + FORKED.replace("pids =", "pids +=") + END + check)
    assert (killed, left) == ("2", "True")
    assert not any(alive(int(pid)) for pid in pids.split())


def test_at_exit_it_comes_last() -> None:
    """After the executors have ended, and after what was registered since."""
    script = (
        START
        + """
import atexit, logging
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
logging.basicConfig(stream=sys.stdout, format="%(message)s")
pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
written = pool.submit(sum, range(5_000_000))
process = subprocess.Popen(["sleep", "1000"])
atexit.register(lambda: print(process.poll(), written.result(), flush=True))
"""
    )
    *_, last, killed = run(script)
    assert last == "None 12499997500000"
    assert killed.startswith("1 processes that environments left behind were killed: sleep ")


def test_it_does_not_wait_for_what_cannot_be_killed() -> None:
    unkillable = """
import psutil
psutil.Process.kill = lambda _: None
leftovers.end = lambda end=leftovers.end: end(seconds=0.3)
"""
    _, killed = run(START + unkillable + CHILD + END + "os.kill(pids[0], 9)")
    assert killed == "1"


def test_without_a_mark_it_ends_nothing(bystander: subprocess.Popen[bytes]) -> None:
    assert Leftovers().end() == []
    assert alive(bystander.pid)

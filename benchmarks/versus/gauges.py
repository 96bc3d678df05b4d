"""What the kernel knows of a process, and an event loop's lag. Linux, the standard library only."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

TICK_SECONDS: Final = 0.005
_RESET_PEAK: Final = "5"
_SS_SECONDS: Final = 10.0


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond. OSError where there is no such process."""
    # CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) makes it; /proc/PID/stat counts in 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def free_seconds() -> float:
    """CPU time that no program took since the machine's start, of all CPUs that this process may use: they
    were idle, or had interrupts, which are nobody's."""
    cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    # user, nice, system, idle, iowait, irq, softirq: see proc_stat(5)
    return sum(sum(map(int, times[3:7])) for name, *times in lines if name in cpus) / os.sysconf("SC_CLK_TCK")


def others_percent(seconds: float, free: float, own: float) -> float:
    """Of the CPU time that there was in so many `seconds`, what neither stayed `free` nor was one's `own`:
    other programs had it, or other virtual machines. To 10 ms a CPU, as the kernel tells it."""
    whole = seconds * len(os.sched_getaffinity(0))
    return max(whole - free - own, 0.0) / whole * 100.0


def peak_mb(pid: int) -> float:
    """The most memory that was resident since `reset_peak`, in MB (10**6 bytes). OSError as above."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found[1]) * 1024 / 1e6


def reset_peak(pid: int) -> None:
    """Let `peak_mb` begin at what is resident now. OSError as above, or where the kernel refuses it."""
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def children(pid: int) -> list[int]:
    """The processes that it started and that live."""
    return [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


def command_line(pid: int) -> str:
    """What it was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


class Traffic(NamedTuple):
    """Bytes of a process's open TCP connections; `sent` are those that the other ends have acknowledged."""

    received: int
    sent: int


def traffic(pid: int) -> Traffic | None:
    """What went over the process's open TCP connections so far; None where `ss` is missing."""
    if shutil.which("ss") is None:
        return None
    said = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, timeout=_SS_SECONDS, check=True)
    return parse_traffic(said.stdout, pid)


def parse_traffic(lines: str, pid: int) -> Traffic:
    """The sums over those lines of `ss -tinpHO` that are the process's."""
    own = "\n".join(line for line in lines.splitlines() if f"pid={pid}," in line)
    # Not bytes_sent: what was sent twice is in it twice, which bytes_received has once.
    received, sent = (re.findall(rf"\b{name}:(\d+)", own) for name in ("bytes_received", "bytes_acked"))
    return Traffic(sum(map(int, received)), sum(map(int, sent)))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The least value that so much of them do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class Lag:
    """How late the running event loop wakes who sleeps on it for 5 ms: `async with Lag() as lag`."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __aenter__(self) -> Lag:
        self._over = False
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Not cancelled: a stall that goes on now counts.
        self._over = True
        await self._ticking

    async def _tick(self) -> None:
        while not self._over:
            began = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            self.seconds.append(time.perf_counter() - began - TICK_SECONDS)

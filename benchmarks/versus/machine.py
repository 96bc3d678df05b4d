"""Where it was measured."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import psutil


def machine() -> dict[str, str]:
    """What this machine is, by name."""
    load = ", ".join(f"{average:.2f}" for average in os.getloadavg())
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} logical CPUs",
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before (1, 5, 15 minutes)": load,
    }


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()

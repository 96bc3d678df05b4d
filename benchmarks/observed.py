"""A server, or a client, that writes down once a second what it holds.

    ENVTRIO_OBSERVED=env_worker:worker-0:FILE python -m benchmarks.observed serve ...

runs `python -m env_worker serve ...`. A thread of its own looks at the process from outside: at /proc, at the
event loops' tasks, and at the state tables, which it finds among Python's objects. The services know nothing
of it.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "ENVTRIO_OBSERVED"
INTERVAL_SECONDS = 1.0
TABLES = ("RunTable", "RouteTable", "SessionTable", "Tombstones")
"""Whose entries are counted: what is live or can be taken back, the sessions, what is remembered."""
SETTLE_SAMPLES = 3
"""After so many samples the process has made its tables and loops, and nobody looks for others."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Observer:
    """Appends one JSON line a second to `path`, as long as the process lives."""

    def __init__(self, name: str, path: str) -> None:
        self._name = name
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._tables: list[Any] = []
        self._loops: list[asyncio.AbstractEventLoop] = []

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._observe, name="observer", daemon=True).start()

    def _observe(self) -> None:
        samples = 0
        while True:
            time.sleep(INTERVAL_SECONDS)
            if samples < SETTLE_SAMPLES:
                self._look_around()
            samples += 1
            os.write(self._fd, json.dumps(self._sample()).encode() + b"\n")

    def _look_around(self) -> None:
        objects = gc.get_objects()
        self._tables = [found for found in objects if type(found).__name__ in TABLES]
        self._loops = [found for found in objects if isinstance(found, asyncio.AbstractEventLoop)]

    def _sample(self) -> dict[str, Any]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        tasks = sum(len(asyncio.all_tasks(loop)) for loop in self._loops if not loop.is_closed())
        entries = {name: 0 for name in TABLES}
        for table in self._tables:
            entries[type(table).__name__] += len(table)
        return {
            "time": time.monotonic(),
            "process": self._name,
            "resident_mib": round(pages * PAGE_BYTES / 2**20, 2),
            "files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "tasks": tasks,
            "runs": entries["RunTable"],
            "routes": entries["RouteTable"],
            "sessions": entries["SessionTable"],
            "tombstones": entries["Tombstones"],
        }


def main() -> None:
    """Observe what the variable names, and run it."""
    package, name, path = os.environ[VARIABLE].split(":", 2)
    Observer(name, path).start()
    sys.exit(importlib.import_module(f"{package}.cli").main())


if __name__ == "__main__":
    main()

"""A side's process: opens its pool, then plays the rounds that its standard input orders.

Each line of the input is an `Order` as JSON, each line of the output an answer: {"ready": ...} at the
start, then {"figures": ...} or {"failed": reason} for each round. The end of the input, and SIGTERM, end
it. The standard library only.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.versus.load import Order, RoundFailed, play
from benchmarks.versus.notes import VARIABLE, Notes
from benchmarks.versus.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractAsyncContextManager

    from benchmarks.versus.load import Subject
    from benchmarks.versus.workloads import Workload


def main(
    open_subject: Callable[[Workload], AbstractAsyncContextManager[Subject]], packages: Collection[str]
) -> None:
    """Serve the workload that the command line names; `packages` are those whose versions are told."""
    # Whatever else prints in this process and its children does not get among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="envtrio-versus-") as folder:
        notes = Notes(Path(folder) / "notes")
        os.environ[VARIABLE] = str(notes.path)
        workload = WORKLOADS[sys.argv[1]]

        def answer(word: str, said: Any) -> None:
            answers.write(json.dumps({word: said}) + "\n")

        asyncio.run(_serve(open_subject(workload), notes, answer, packages))


async def _serve(
    opened: AbstractAsyncContextManager[Subject],
    notes: Notes,
    answer: Callable[[str, Any], None],
    packages: Collection[str],
) -> None:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    orders = asyncio.StreamReader()
    # Not a thread that reads: it would keep the process from ending.
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    try:
        async with opened as subject:
            answer("ready", {"processes": asdict(subject.processes), "versions": versions(packages)})
            while line := await orders.readline():
                try:
                    answer("figures", await play(Order(**json.loads(line)), subject, notes))
                except (RoundFailed, OSError) as error:
                    answer("failed", str(error))
    except asyncio.CancelledError:
        pass  # by SIGTERM: what was opened is closed


def versions(packages: Collection[str]) -> dict[str, str]:
    """Of Python and those of the packages that are there."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

"""A side's driver, as the benchmark holds it: started, asked for rounds, and ended whatever happened."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.versus.workloads import CEILING, OURS, PEER

if TYPE_CHECKING:
    from typing import Self

    from benchmarks.versus.load import Order

ROOT: Final = Path(__file__).resolve().parents[2]
START_SECONDS: Final = 180.0
_CLOSE_SECONDS: Final = 40.0
_KILL_SECONDS: Final = 10.0
_LOG_TAIL: Final = 400
_ANSWER_BYTES: Final = 2**20
_KEEPS_ITS_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}
"""By glibc's defaults a process gives the arrays of an episode back to the kernel, or keeps them, as chance
lays them out: a factor of two. A ceiling has none of that cost; the pools' processes are as they are."""
_MODULES: Final = {OURS: "ours_driver", PEER: "peer_driver", CEILING: "ceiling"}


class SideFailed(Exception):
    """A driver did not start, ended, or was silent for too long; the message says which."""


class Side:
    """One driver process and all that it started: `async with Side(...) as side`.

    Args:
        name: what it is called: `OURS`, `PEER` or `CEILING`.
        workload: the name of what it plays.
        python: the interpreter that it runs under.
        log: the file that takes what it and its servers say.
    """

    def __init__(self, name: str, workload: str, python: Path, log: Path) -> None:
        self.name = name
        self._workload = workload
        self._python = python
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._started: list[psutil.Process] = []
        self._busy = False
        self.versions: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(str(self._python), "-m", f"benchmarks.versus.{_MODULES[self.name]}", self._workload),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._variables(),
                cwd=ROOT,
                limit=_ANSWER_BYTES,
                start_new_session=True,  # Ctrl-C is for this process, which then ends that one in order
            )
        try:
            ready = await self._answer(START_SECONDS)
            self.versions = ready["ready"]["versions"]
            self._remember()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def play(self, order: Order, timeout: float) -> dict[str, float | None]:
        """A round's figures. SideFailed if it has none, and then the side is to be ended or is well."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise SideFailed(self._said("its process has ended")) from error
        answer = await self._answer(timeout)
        self._remember()
        if "failed" in answer:
            raise SideFailed(str(answer["failed"]))
        figures: dict[str, float | None] = answer["figures"]
        return figures

    async def _answer(self, timeout: float) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        self._busy = True
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout)
        except TimeoutError as error:
            raise SideFailed(self._said(f"no answer within {timeout:.0f} s")) from error
        if not line:
            raise SideFailed(self._said("its process has ended"))
        self._busy = False
        return json.loads(line)

    def _variables(self) -> dict[str, str]:
        paths = [ROOT, ROOT / "benchmarks/versus/peer_path" if self.name == PEER else ROOT / "protos"]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        return variables | _KEEPS_ITS_MEMORY if self.name == CEILING else variables

    def _said(self, what: str) -> str:
        tail = self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
        return f"{what}; its log ends with: {' '.join(tail.split())}" if tail else what

    def _remember(self) -> None:
        """All that lives below it now: once it has ended, nobody knows whose they were."""
        assert self._process is not None
        try:
            self._started = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            self._remember()
            if process.stdin is not None:
                process.stdin.close()  # it ends in order, if it reads
            if self._busy:
                process.terminate()  # in order too, but from within its round
            if not await _ended(process, _CLOSE_SECONDS):
                process.kill()
        # By id, and only those: psutil compares when a process began, so a number that came round is no
        # other's.
        _, left = await asyncio.to_thread(psutil.wait_procs, self._started, _KILL_SECONDS)
        for other in left:
            try:
                other.kill()
            except psutil.NoSuchProcess:
                continue
        if left:
            print(f"{self.name}: killed {len(left)} processes that it left", file=sys.stderr)
        await process.wait()  # only now: it is not over before its pipes are closed, which others may have


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        return False
    return True

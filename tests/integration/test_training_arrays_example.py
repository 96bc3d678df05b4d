"""The example of training arrays: three processes, which check what they pass on and leave nothing behind."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.helpers.pools import ROOT

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLE = ROOT / "examples" / "training_arrays"
MARK = "ENVTRIO_TEST_TRAINING_ARRAYS"


def module(name: str) -> ModuleType:
    """A script of the example, as a module."""
    spec = importlib.util.spec_from_file_location(f"training_arrays_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


async def run_example(mark: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLE / "demo.py"), *arguments),
        cwd=EXAMPLE, env={**os.environ, MARK: mark},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


def marked(mark: str) -> list[int]:
    """The processes that carry the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # it has ended meanwhile
            if f"{MARK}={mark}".encode() in environment and state not in "ZX":
                found.append(int(entry.name))
    return found


async def test_every_half_arrives_as_it_was_kept() -> None:
    mark = uuid.uuid4().hex
    process = await run_example(mark, "2")
    out, error = (data.decode() for data in await asyncio.wait_for(process.communicate(), 50))
    assert process.returncode == 0, error
    assert out.splitlines()[-1] == "all three have ended, and nothing was left in the worker"
    passed, stayed = re.search(r"(\S+) MB passed through, (\S+) MB of training arrays stayed", error).groups()  # type: ignore[union-attr]
    assert float(stayed) > 20 * float(passed)
    halves = re.search(r"rank 0 took (\S+) MB .* rank 1 (\S+) MB", error).groups()  # type: ignore[union-attr]
    assert sum(map(float, halves)) == pytest.approx(float(stayed), abs=0.2)
    assert "4 branches fetched, checked and released, 0 faults" in error
    assert marked(mark) == []


async def test_interrupted_it_leaves_nothing_behind() -> None:
    mark = uuid.uuid4().hex
    process = await run_example(mark, "100")
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 30)
    assert line == b"worker, orchestrator and trainer are running\n"
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130
    assert marked(mark) == []


def test_the_trainer_sees_what_differs() -> None:
    rows = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    counts = np.ones(3, np.int32)
    whole = {"routed_experts": rows, "sampling_mask.counts": counts}
    checksums = {name: module("trainer").hashlib.sha256(array).hexdigest() for name, array in whole.items()}
    line: dict[str, Any] = {"checksums": checksums, "token_ids": [7] * 6, "mask": [0, 1, 0, 1, 0, 1]}

    def halves(rows: Any, counts: Any) -> list[dict[str, Any]]:
        parts = ((slice(0, 3), slice(0, 1)), (slice(3, None), slice(1, None)))
        return [{"routed_experts": rows[a], "sampling_mask.counts": counts[b]} for a, b in parts]

    faults_of = module("trainer").faults_of
    assert faults_of(line, halves(rows, counts)) == []
    assert faults_of(line, halves(rows + 1, counts)) == ["routed_experts has another checksum"]
    assert faults_of(line, halves(rows[:5], counts)) == [
        "routed_experts has another checksum",
        "5 rows and 3 counts do not fit its tokens and mask",
    ]

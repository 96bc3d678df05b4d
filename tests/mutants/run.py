"""Makes each mutant alone in a copy of the tree, and runs the tests that must find it.

    python -m tests.mutants.run [NAME ...]

Exit code 1 if the tests fail without any mutant, or if a mutant survives or cannot be made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tests.mutants.mutant import Mutant, MutantError
from tests.mutants.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]
TREES = ("env_worker", "env_broker", "env_client", "tests", "protos", "examples", "pyproject.toml")
PROCESSES = 2
RUN_SECONDS = 120.0
_FAILED, _PASSED = 1, 0


def main() -> int:
    """Run what the command line names, and print a table."""
    parser = argparse.ArgumentParser(description="Check that the tests find these bugs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to make; default: all")
    chosen = parser.parse_args().names
    if unknown := set(chosen) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"there is no mutant named {', '.join(sorted(unknown))}; see tests/mutants/mutants.py")
    mutants = [mutant for mutant in MUTANTS if not chosen or mutant.name in chosen]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(PROCESSES) as threads:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(PROCESSES):
            copies.put(_copy(Path(scratch) / str(number)))
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        baseline = copies.get()
        print(f"{len(mutants)} mutants; first, all their tests without any", flush=True)
        code, output = _pytest(baseline, tests)
        if code != _PASSED:
            print(f"{output}\nthe tests do not pass without a mutant (pytest's exit code is {code})")
            return 1
        copies.put(baseline)
        print(f"{'mutant':52} {'result':10} {'s':>5}  by")
        results = list(threads.map(lambda mutant: _judge(mutant, copies), mutants))
    bad = [mutant.name for mutant, killed in zip(mutants, results, strict=True) if not killed]
    print(f"{len(mutants) - len(bad)} of {len(mutants)} killed" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


def _judge(mutant: Mutant, copies: SimpleQueue[Path]) -> bool:
    root = copies.get()
    began = time.monotonic()
    detail = ""
    try:
        before = mutant.apply(root)
    except MutantError as error:
        result, detail = "no mutant", str(error)
    else:
        code, output = _pytest(root, mutant.tests, "-x")
        (root / mutant.file).write_text(before)
        if code == _FAILED:
            result, detail = "killed", _first_failure(output)
        elif code == _PASSED:
            result, detail = "SURVIVED", ", ".join(mutant.tests)
        else:
            # Tests that cannot even be collected prove nothing.
            result, detail = "no verdict", f"pytest's exit code is {code}: {output[-500:]}"
    finally:
        copies.put(root)
    print(f"{mutant.name:52} {result:10} {time.monotonic() - began:5.1f}  {detail}", flush=True)
    return result == "killed"


def _copy(target: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    target.mkdir()
    for name in TREES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


def _pytest(root: Path, tests: Iterable[str], *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", "--timeout=30"]
    command += ["-p", "no:cacheprovider", "--hypothesis-seed=0", *options, *tests]
    # No bytecode: what is written within the second in which it was read would count as unchanged.
    paths = os.pathsep.join((str(root), str(root / "protos")))
    variables = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=variables, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return _FAILED, f"FAILED by hanging for {RUN_SECONDS:g} s"
    return done.returncode, done.stdout + done.stderr


def _first_failure(output: str) -> str:
    failures = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0].split(" - ")[0][:110] if failures else "(no summary)"


if __name__ == "__main__":
    raise SystemExit(main())

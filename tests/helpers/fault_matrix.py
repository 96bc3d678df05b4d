"""The fault matrix: what a run's caller, its hook and a late cancel met, by fault and moment.

A test, in any file, that has seen an outcome and asserted all that it promises says so in one call:

    record("SIGKILL of a worker", "running", "`UNAVAILABLE WORKER_LOST`")

That is compared with docs/fault_matrix.md. `make fault-matrix` runs tests/faults and every other test file
that imports this module, and writes the document anew from what was recorded, so that it shows the cells
whose tests passed and no others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "fault_matrix.md"
VARIABLE: Final = "ENVTRIO_TEST_FAULT_MATRIX"
"""With the path of a file, `record` appends to it instead of comparing."""
MOMENTS: Final = (
    "waits in the queue",
    "runs",
    "in keep",
    "replied, not confirmed",
    "replied, no session",
    "confirmed",
    "on another worker",
    "afterwards",
)
"""The columns; a row with another moment gets a table of its own."""

_HEAD: Final = """\
# What a fault does to a run

Each cell was observed by a test that passed, with real processes, signals and networks; `make fault-matrix`
runs them and writes this page. In most rows one run was at each moment of its life, all in one pool, when the
fault came.

- First stands what the caller hears: status and reason. *confirmed*: its client's confirmation made it final.
- Then what became of the episode: *kept* and delivered; *kept, discarded once*; *kept, died with its worker*.
- Last, what a Cancel is answered that comes when all is over.

No run was ever begun twice. `make chaos` plays such faults at random, from a seed.

"""


def record(fault: str, moment: str, outcome: str) -> None:
    """This outcome was observed. AssertionError if docs/fault_matrix.md says something else."""
    if path := os.environ.get(VARIABLE):
        with open(path, "a") as file:
            file.write(json.dumps([fault, moment, outcome]) + "\n")
        return
    documented = read().get(fault, {}).get(moment)
    assert documented == outcome, (
        f"{fault} / {moment}: observed {outcome!r}, docs/fault_matrix.md says {documented!r}; "
        "where the new outcome is right run `make fault-matrix`"
    )


def read() -> dict[str, dict[str, str]]:
    """fault -> moment -> outcome, as documented."""
    cells: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in DOCUMENT.read_text().splitlines() if DOCUMENT.exists() else ():
        if not line.startswith("| "):
            continue
        fault, *outcomes = (cell.strip() for cell in line.strip("|").split(" | "))
        if fault == "fault":
            columns = outcomes
        elif not fault.startswith("---"):
            cells[fault] = {
                moment: outcome for moment, outcome in zip(columns, outcomes, strict=True) if outcome
            }
    return cells


def rendered(cells: dict[str, dict[str, str]]) -> str:
    """The document."""
    usual = {fault: row for fault, row in cells.items() if set(row) <= set(MOMENTS)}
    tables = [_table(usual)] + [_table({fault: row}) for fault, row in cells.items() if fault not in usual]
    return _HEAD + "\n".join(tables)


def _table(cells: dict[str, dict[str, str]]) -> str:
    moments = list(dict.fromkeys(moment for row in cells.values() for moment in row))
    moments.sort(key=lambda moment: MOMENTS.index(moment) if moment in MOMENTS else -1)
    lines = [["fault", *moments], ["---"] * (len(moments) + 1)]
    lines += [[fault, *(row.get(moment, "") for moment in moments)] for fault, row in cells.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Run the tests that record, and write what they did. The exit code is pytest's."""
    tests = sorted(
        str(path)
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent.name == "faults" or "helpers.fault_matrix import" in path.read_text()
    )
    cells: dict[str, dict[str, str]] = {}
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as found:
        variables = {**os.environ, VARIABLE: found.name}
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], env=variables, cwd=ROOT)
        for line in Path(found.name).read_text().splitlines():
            fault, moment, outcome = json.loads(line)
            cells.setdefault(fault, {})[moment] = outcome
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(rendered(cells))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

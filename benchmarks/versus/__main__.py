"""Our pool and the peer in one run.

    python -m benchmarks.versus [--workloads small,chatty] [--rounds N] [--quick] [--peer-python PYTHON]

Makes the peer's environment if need be, plays each workload on both sides in turns, and writes RESULTS.md,
results.png and results.json. About 13 minutes with two CPUs, the peer's installation aside. A run of some
workloads only, or with --quick, writes them below .bench instead of benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.versus.bench import Match, Setting
from benchmarks.versus.machine import machine
from benchmarks.versus.peer_home import PeerMissing, peer_python
from benchmarks.versus.plot import draw
from benchmarks.versus.report import report
from benchmarks.versus.side import ROOT
from benchmarks.versus.ticker import ticker
from benchmarks.versus.workloads import CEILING, OURS, PEER, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.versus.figures import Results
    from benchmarks.versus.workloads import Workload

_SCRATCH: Final = ROOT / ".bench"
_ROUNDS: Final = 5
_QUICK_ROUNDS: Final = 2


def main() -> int:
    """Read the arguments, run, write; the exit code: 1 if a round of ours failed."""
    arguments = _parser().parse_args()
    chosen = [WORKLOADS[name] for name in arguments.workloads]
    partial = arguments.quick or len(chosen) < len(WORKLOADS)
    output: Path = arguments.output or (_SCRATCH / "partial" if partial else ROOT / "benchmarks")
    logs = _SCRATCH / "logs"
    for folder in (output, logs):
        folder.mkdir(parents=True, exist_ok=True)
    if arguments.quick:
        chosen = [workload.quick for workload in chosen]
    try:
        peer = peer_python(_SCRATCH / "peer", arguments.peer_python)
    except PeerMissing as error:
        print(f"make bench: {error}", file=sys.stderr)
        return 2
    rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _ROUNDS)
    where, began, ticks = machine(), time.monotonic(), asyncio.run(ticker())
    ours = Path(sys.executable)
    setting = Setting(rounds, {OURS: ours, CEILING: ours, PEER: peer}, logs, _say)
    try:
        results, versions = asyncio.run(_play(chosen, setting))
    except KeyboardInterrupt:
        print("make bench: interrupted; nothing was written", file=sys.stderr)
        return 130
    took = time.monotonic() - began
    draw(results, output / "results.png")
    text = report(
        results,
        rounds=rounds,
        command=_command(arguments, rounds),
        date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {took / 60:.0f} minutes",
        machine=where,
        versions=versions,
        ticker=ticks,
        plot="results.png",
    )
    (output / "RESULTS.md").write_text(text)
    raw = {result.workload.name: result.rounds for result in results}
    (output / "results.json").write_text(json.dumps(raw, indent=1) + "\n")
    print(f"wrote {output / 'RESULTS.md'}, in {took / 60:.1f} minutes")
    return int(any(result.failures(side) for result in results for side in result.rounds if side != PEER))


async def _play(
    workloads: Sequence[Workload], setting: Setting
) -> tuple[list[Results], dict[str, dict[str, str]]]:
    results, versions = [], dict[str, dict[str, str]]()
    for workload in workloads:
        fitting = workload.fitting(psutil.virtual_memory().available)
        if fitting != workload:
            _say(
                f"{workload.name}: {fitting.ours} episodes instead of {workload.ours}, as memory has room for"
            )
        match = Match(fitting, setting)
        results.append(await match.play())
        versions |= match.versions
    return results, versions


def _command(arguments: argparse.Namespace, rounds: int) -> str:
    """What makes such a table anywhere: without the folders of this machine."""
    names = ",".join(arguments.workloads)
    chosen = f" --workloads {names}" if names != ",".join(WORKLOADS) else ""
    return f"python -m benchmarks.versus --rounds {rounds}{chosen}{' --quick' if arguments.quick else ''}"


def _say(what: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {what}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workloads", type=_names, default=list(WORKLOADS), help=f"of {','.join(WORKLOADS)}; default: all"
    )
    parser.add_argument(
        "--rounds", type=int, help=f"of each side; default {_ROUNDS}, with --quick {_QUICK_ROUNDS}"
    )
    parser.add_argument("--quick", action="store_true", help="few episodes: does it work?")
    parser.add_argument(
        "--peer-python", type=Path, help="a Python that has the peer; default: one is made in .bench"
    )
    parser.add_argument("--output", type=Path, help="folder for what is written")
    return parser


def _names(text: str) -> list[Any]:
    if unknown := [name for name in text.split(",") if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} unknown; choose from {', '.join(WORKLOADS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())

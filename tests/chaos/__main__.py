"""`python -m tests.chaos --seconds S --seed N`: the exit code is 0 if every promise held."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.chaos.arena import Arena, play
from tests.chaos.plan import faults
from tests.chaos.verdict import Totals, emptied, judge, quiet
from tests.helpers import oracle
from tests.helpers.history import DiscardBegan, Ended, History, KeepBegan
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.snapshot import Snapshot
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from tests.chaos.plan import Fault

PROGRESS_SECONDS: Final = 10.0


async def chaos(
    directory: Path, seed: int, seconds: float, *, tell: bool = False, thorough: bool = False
) -> Totals:
    """Play the seed's plan for so long. GuaranteeBroken if a promise did not hold.

    Args:
        tell: print a line now and then.
        thorough: wait at the end until every window is closed and every table empty.
    """
    plan = faults(seed, seconds)
    came: Counter[str] = Counter()
    pipe = HistoryPipe(directory / "chaos.history")
    arena = Arena(pipe, seed)

    def note(fault: Fault) -> None:
        came[fault.kind] += 1

    began = time.monotonic()
    # Holds gRPC's own threads and files, which come and go with its first and last channel.
    async with StubClient("127.0.0.1:1", History()):
        before = Snapshot.take()
        progress = asyncio.create_task(_progress(pipe.history, came, began, tell))
        try:
            await arena.start()
            await play(arena, plan, seconds, note)
            await arena.heal()
            buried = arena.bury_all()
            await quiet(pipe)
            await arena.ask(buried)
            if thorough:
                await emptied(arena.address)
                arena.descriptors_are_few()
            await arena.stop()
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
            await arena.clean_up()
            pipe.close()
        judge(pipe.history)
        oracle.nothing_left_behind(before, Snapshot.take())
    return Totals.of(pipe.history, came, time.monotonic() - began)


async def _progress(history: History, came: Counter[str], began: float, tell: bool) -> None:
    while tell:
        await asyncio.sleep(PROGRESS_SECONDS)
        counts = Counter(type(record) for record in history)
        print(
            f"{time.monotonic() - began:5.0f} s: {counts[Ended]} runs, {counts[KeepBegan]} kept, "
            f"{counts[DiscardBegan]} discarded, {sum(came.values())} faults",
            flush=True,
        )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Random faults under load; the same seed, the same faults.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", action="store_true", help="print the faults of the seed and leave")
    arguments = parser.parse_args()
    if arguments.plan:
        for fault in faults(arguments.seed, arguments.seconds):
            print(fault)
        return 0
    print(f"chaos: seed {arguments.seed}, {arguments.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        try:
            totals = asyncio.run(
                chaos(Path(directory), arguments.seed, arguments.seconds, tell=True, thorough=True)
            )
        except AssertionError as broken:
            print(f"chaos: seed {arguments.seed} {broken}", file=sys.stderr)
            with contextlib.suppress(AttributeError):
                print("\n".join(broken.__notes__), file=sys.stderr)
            return 1
    print("\n".join(totals.lines()))
    print(f"chaos: seed {arguments.seed}: every promise held")
    return 0


if __name__ == "__main__":
    sys.exit(main())

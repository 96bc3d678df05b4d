"""What the ratios rest on: how many turns each side puts into a delta, and what a delta costs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.versus import cells
from benchmarks.versus.figures import Spread
from benchmarks.versus.workloads import OURS, PEER, SETTLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.versus.figures import Results

_ALIKE: Final = 0.1
"""By how much the numbers of deltas may differ and count as the same."""

_HEADS: Final = (
    "| workload | gives way | deltas an episode: envtrio | peer | as many "
    "| CPU, µs a delta: envtrio | peer | ratio | episodes/s, ratio |"
)
_TEXT: Final = f"""
## What the ratios rest on

One thing in both environments is there for the comparison only: after each turn they give way to their
event loop {SETTLED} times (`settle`). That is what the peer needs to send the turn: its flush begins, its
task runs, the trace is diffed, the delta leaves. So the peer sends each turn as a delta of its own, also
where the next turn is ready at once. envtrio runs environments in a thread of their own, and waits a
moment for more before it makes a delta, which that thread does not wait for: it joins turns that are
ready at once. **The saturated rows with `settle` favour whoever joins**: where envtrio has fewer deltas,
as below, part of its ratio is that it makes and sends fewer of them for the same turns.

- **small-joined** is small without `settle`: an environment that never gives way between its turns. There
  the peer joins too, and sends about one delta an episode. It has no bars.
- **paced-64 is the like-for-like row**: a turn waits {{pace}} ms, as one does that waits for a model, so
  there is nothing to join, and each turn is a delta of its own on both sides. Its load sets episodes/s; what
  differs is the CPU.

Medians of the rounds. The CPU is that of client, broker and worker together and has the environment in it; a
delta that joins turns costs more than one that does not.

{_HEADS}
|{" --- |" * _HEADS.count(" | ")} --- |
"""


def basis(results: Sequence[Results], pace_seconds: float) -> str:
    """The text and its table; `pace_seconds` is what a turn of the paced workloads waits."""
    return _TEXT.format(pace=f"{pace_seconds * 1e3:g}") + "".join(_row(result) + "\n" for result in results)


def _row(result: Results) -> str:
    yields = result.workload.shape.yields
    row = [result.workload.name, f"{yields} times" if yields else "never"]
    row += [cells.median(result.spread(side, "deltas_per_episode")) for side in (OURS, PEER)]
    deltas = Spread.of(result.ratios(OURS, "deltas_per_episode"))
    row.append(_alike(deltas))
    row += [cells.median(result.spread(side, "delta_cpu_us")) for side in (OURS, PEER)]
    for figure in ("delta_cpu_us", "episodes_per_s"):
        row.append(cells.median(Spread.of(result.ratios(OURS, figure)), "x"))
    return f"| {' | '.join(row)} |"


def _alike(ratio: Spread | None) -> str:
    if ratio is None:
        return "-"
    return "yes" if abs(ratio.median - 1.0) <= _ALIKE else f"no, {cells.median(ratio, 'x')}"

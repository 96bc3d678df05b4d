"""What a broker's exit code says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from env_broker.ending import Ending

EXIT_OK: Final = 0
"""Stopped, and nothing was lost."""
EXIT_CANNOT_START: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNFINISHED: Final = 3
"""Hooks of a local worker were still at work at the end, or it was killed or ended by a failure."""
EXIT_ARRAYS_LOST: Final = 4
"""A local worker held training arrays that nobody had fetched."""
EXIT_RUNS_ENDED: Final = 5
"""Runs that had begun were ended by the stop, here or in a local worker."""

HELP: Final = (
    "exit code: 0 stopped and nothing lost; 1 cannot start, as where the port is taken; 2 wrong usage; of "
    "what the stop has lost the first that applies: 3 hooks of a local worker were still at work, or it was "
    "killed or failed; 4 a local worker held training arrays that nobody had fetched; 5 runs that had begun "
    "were ended"
)

_WORKER_STUCK: Final = 6
"""A worker's code; of a broker's own codes there is none like it, as it replaces that worker."""


def losses(ending: Ending) -> frozenset[int]:
    """What a local worker has lost that ended while the broker stopped."""
    if ending.code in (EXIT_UNFINISHED, EXIT_ARRAYS_LOST, EXIT_RUNS_ENDED):
        return frozenset({ending.code})
    if ending.code == _WORKER_STUCK:
        return frozenset({EXIT_RUNS_ENDED})
    # Killed by whatever signal, or ended by its environments: nobody knows what its hooks had. Before it
    # registered it had nothing.
    return frozenset({EXIT_UNFINISHED} if ending.code != EXIT_OK and ending.instance else ())

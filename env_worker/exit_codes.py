"""What the exit code of `env-worker serve` says."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNFINISHED: Final = 3
EXIT_HELD: Final = 4
EXIT_ENDED: Final = 5
EXIT_STUCK: Final = 6

MEANINGS: Final = {
    EXIT_OK: "nothing was lost",
    EXIT_REFUSED: "the broker refused the worker",
    EXIT_USAGE: "the worker cannot start; the last line on stderr says why",
    EXIT_UNFINISHED: "hooks were still at work after --kill-seconds: what they keep is neither delivered nor "
    "discarded",
    EXIT_HELD: "the hook still held training arrays (its held_arrays) when --linger-seconds were over",
    EXIT_ENDED: "runs that had begun were ended (WORKER_LOST) when --drain-seconds were over",
    EXIT_STUCK: "an environment blocked the loop of all environments for --stuck-seconds",
}
"""By code. The first of 3, 4 and 5 that applies; 1 and 6 say why the worker ended by itself, and only 3 takes
their place. Replies that could still be taken back count as delivered, and so as no loss."""


def exit_code(cause: int, *, unfinished: int, held: int, ended: int) -> int:
    """The exit code of a worker that stopped for `cause` (0: it was told to), with so many runs whose hooks
    are still at work, episodes whose arrays are held, and runs that had begun and were ended."""
    if unfinished:
        return EXIT_UNFINISHED
    if cause != EXIT_OK:
        return cause
    return EXIT_HELD if held else EXIT_ENDED if ended else EXIT_OK

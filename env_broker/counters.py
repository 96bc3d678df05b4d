"""What has become of the runs since the broker started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNS: Final = "runs"
REPLIED: Final = "replied"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
REFUSED: Final = "refused"
WORKERS_LOST: Final = "workers_lost"

_OUTCOMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("CANCEL_REQUESTED", "CALLER_LOST", "SESSION_LOST", "DEADLINE"), CANCELLED),
    **dict.fromkeys(
        (
            "INVALID_REQUEST",
            "INVALID_REQUEST_ID",
            "INVALID_TASK",
            "ENDPOINT_NOT_ALLOWED",
            "PROTOCOL_GENERATION",
            "ENVIRONMENT_NOT_FOUND",
            "DUPLICATE_REQUEST_ID",
            "QUEUE_FULL",
            "TABLE_FULL",
            "ARRAY_BUDGET",
            "DRAINING",
            "NO_WORKER_READY",
            "NOT_ADMITTED",
            "UNAUTHENTICATED",
            "NOT_PERMITTED",
            "NOT_OFFERED",
        ),
        REFUSED,
    ),
}


def outcome_of(reason: str | None) -> str:
    """The counter of a run that ended with a status of that reason; None: gRPC made the status."""
    return _OUTCOMES.get(reason or "", FAILED)


class Counters:
    """Counts by name; those of runs are as in pool_service.proto.

    Every run is counted once as it comes and once as it ends, so that the difference is what is carried now.
    """

    def __init__(self) -> None:
        self._counts: Final = dict.fromkeys((RUNS, REPLIED, CANCELLED, FAILED, REFUSED, WORKERS_LOST), 0)

    def add(self, name: str) -> None:
        """Count one more. KeyError if there is no such counter."""
        self._counts[name] += 1

    def view(self) -> dict[str, int]:
        """All of them, as they are now."""
        return dict(self._counts)

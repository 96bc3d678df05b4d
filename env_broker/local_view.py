"""One local worker, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from env_broker.local_worker import LocalWorker


class LocalView(NamedTuple):
    """What is to be known of one."""

    slot: int
    pid: int | None
    """None while it waits to be started."""
    instance: str
    """Empty until it has registered."""
    state: str
    """STARTING, WAITING (to be started again), REGISTERED or LEAVING."""
    condition: str
    """What its process does; empty while that is what it should."""
    detail: str
    """How its last process ended, and its last lines if it had never registered; empty before."""
    restarts: int

    @classmethod
    def of(cls, worker: LocalWorker) -> Self:
        """That of this worker, now."""
        last = worker.last
        return cls(
            worker.slot,
            worker.pid,
            worker.instance,
            _state(worker),
            worker.condition,
            # One that had registered is shown with its last lines as a lost worker.
            last.how if last.instance else last.words,
            max(0, worker.starts - 1),
        )


def _state(worker: LocalWorker) -> str:
    if worker.leaving:
        return "LEAVING"
    if worker.instance:
        return "REGISTERED"
    return "WAITING" if worker.pid is None else "STARTING"

"""What a run may hope for: who serves it, who may come to, and why it would wait in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from env_broker.status import Refusal, short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from env_broker.pool import Pool, Worker

RETRY_SECONDS: Final = 1.0
"""After how long a run that found no room should come again."""
_MOST_NAMED: Final = 3
"""Workers that cannot be reached, in one message."""


class Prospects(Protocol):
    """Workers that have not registered yet."""

    def hopeful(self) -> bool:
        """Whether one is expected to register soon."""

    def detail(self) -> str:
        """For people: why none is there. May be empty."""


class Outlook:
    """Judges what is there, and what may come.

    Args:
        pool: the registered workers.
        prospects: workers that may still come.
        may_grow: by environment, whether another worker is started for a run of it that waits because those
            there have no room.
    """

    def __init__(self, pool: Pool, prospects: Prospects, may_grow: Callable[[str], bool]) -> None:
        self._pool: Final = pool
        self._prospects: Final = prospects
        self._may_grow: Final = may_grow

    def served(self) -> frozenset[str]:
        """What the workers serve that take runs."""
        return frozenset().union(*(worker.environments for worker in self._live()))

    def resolve(self, environment: str) -> str:
        """The only environment there is for an empty name; else the name."""
        served = self.served()
        return next(iter(served)) if not environment and len(served) == 1 else environment

    def is_full(self, environment: str) -> bool:
        """Whether some serve it, and the training arrays of all of them leave no room."""
        workers = self._serving(environment)
        return bool(workers) and all(worker.full_because for worker in workers)

    def elsewhere(self, environment: str, avoid: Collection[str]) -> bool:
        """Whether a worker other than these serves it, free or not, or may come to. None whose training
        arrays leave no room."""
        return self._expects(environment) or any(
            worker.instance not in avoid and not worker.full_because for worker in self._serving(environment)
        )

    def verdict(self, environment: str) -> Refusal | None:
        """Why a run of that environment would wait in vain; None where it may wait."""
        served = self.served()
        names = ", ".join(sorted(served))
        if environment in served or (not environment and len(served) == 1):
            return self._no_room(environment)
        if not environment and served:
            return Refusal(
                "INVALID_REQUEST",
                f"environment is empty and {len(served)} are served; name one of: {names}",
                field="environment",
                value="",
            )
        live, unreachable = self._live(), self._unreachable(environment)
        if self._prospects.hopeful() or any(not worker.environments for worker in live):
            return None
        if live and not unreachable:
            return Refusal(
                "ENVIRONMENT_NOT_FOUND",
                f"no worker serves environment {environment[:128]!r}; there are: {names}",
                field="environment",
                value=environment,
            )
        detail = "; ".join(part for part in (_unreachable(unreachable), self._prospects.detail()) if part)
        return Refusal(
            "NO_WORKER_READY",
            f"no worker takes runs{_of(environment)}: {_registered(len(self._pool))}; send the run again "
            "when Health says SERVING",
            detail=detail,
            value=len(self._pool),
        )

    def _no_room(self, environment: str) -> Refusal | None:
        """Where the training arrays of all that serve it leave no room: only a trainer can make some."""
        if not self.is_full(environment) or self._expects(environment):
            return None
        workers = self._serving(environment)
        last = workers[-1]
        return Refusal(
            "ARRAY_BUDGET",
            f"no worker that takes runs{_of(environment)} has room for training arrays; release arrays that "
            f"were fetched, and send the run again in {RETRY_SECONDS:g} s",
            detail=f"worker {short(last.instance)}: {last.full_because}",
            retry_after=RETRY_SECONDS,
            workers=len(workers),
        )

    def _expects(self, environment: str) -> bool:
        """Whether a worker is on its way, or will be if the run waits: for want of room one is started."""
        return self._prospects.hopeful() or (self.is_full(environment) and self._may_grow(environment))

    def _live(self) -> list[Worker]:
        """The workers that take runs, or may come to in a moment: not those that were dialled in vain."""
        return [w for w in self._pool.workers() if not w.draining and not w.unreachable_because]

    def _serving(self, environment: str) -> list[Worker]:
        """Those of them that serve it, or may come to."""
        return [worker for worker in self._live() if _may_serve(worker, environment)]

    def _unreachable(self, environment: str) -> list[Worker]:
        """Workers that would take such a run if they could be dialled."""
        return [
            worker
            for worker in self._pool.workers()
            if worker.unreachable_because and not worker.draining and _may_serve(worker, environment)
        ]


def _may_serve(worker: Worker, environment: str) -> bool:
    """Whether it serves it, or may come to as its environments are loading; an empty name is any."""
    return not worker.environments or environment in ("", *worker.environments)


def _of(environment: str) -> str:
    return f" of environment {environment[:128]!r}" if environment else ""


def _registered(count: int) -> str:
    """For people: so many are, and no run can be given to them."""
    if not count:
        return "none is registered"
    return "1 is registered, and does not" if count == 1 else f"{count} are registered, and none does"


def _unreachable(workers: list[Worker]) -> str:
    """For people: why they cannot be dialled."""
    return "; ".join(
        f"worker {worker.instance[:8]} cannot be reached at {worker.address}: {worker.unreachable_because}"
        for worker in workers[:_MOST_NAMED]
    )

"""What the pool is doing, as one message."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from envtrio.v1 import pool_service_pb2

from env_broker.status import masked, short

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from envtrio.v1.pool_service_pb2 import WatchPoolResponse, WorkerState, WorkerView

    from env_broker.clock import Clock
    from env_broker.counters import Counters
    from env_broker.dispatch import Dispatcher
    from env_broker.link import WorkerLink
    from env_broker.local_view import LocalView
    from env_broker.tasks import Errands

LOST_SECONDS: Final = 60.0
"""How long a lost worker is shown; a local one also for as long as its process lives."""
MAX_LOST: Final = 64
"""How many lost workers are shown, the last ones."""

_MAX_DETAIL_CHARACTERS: Final = 1_500
_LOST: Final = "it was lost: "
_STOPPING: Final = "the broker is stopping and takes no runs"


class LocalWorkers(Protocol):
    """The broker's own workers."""

    def views(self) -> Sequence[LocalView]:
        """The place of each."""

    async def last_words(self, slot: str, instance: str) -> str:
        """How that instance ended and what it logged last; empty if it lives."""


class _Lost(NamedTuple):
    view: WorkerView
    until: float


class PoolView:
    """Puts the view together from what the parts of the broker know.

    Args:
        links: instance -> link of every registered worker.
        local: the broker's own workers.
        max_queue: runs that may wait.
        bounds: fewest and most local workers.
        wall: seconds since 1970, for people.
    """

    def __init__(
        self,
        *,
        links: Mapping[str, WorkerLink],
        dispatcher: Dispatcher,
        local: LocalWorkers,
        counters: Counters,
        errands: Errands,
        clock: Clock,
        max_queue: int,
        bounds: tuple[int, int] = (0, 0),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._links: Final = links
        self._dispatcher: Final = dispatcher
        self._local: Final = local
        self._counters: Final = counters
        self._errands: Final = errands
        self._clock: Final = clock
        self._max_queue: Final = max_queue
        self._bounds: Final = bounds
        self._wall: Final = wall
        self._registered: dict[str, tuple[str, float]] = {}
        """instance -> its lease, and when that began."""
        self._lost: Final[dict[str, _Lost]] = {}

    def changed(self) -> None:
        """The pool has changed: remember when each registration was."""
        now = self._wall()
        self._registered = {
            instance: known
            if (known := self._registered.get(instance)) is not None and known[0] == link.worker.lease
            else (link.worker.lease, now)
            for instance, link in self._links.items()
        }

    def lost(self, link: WorkerLink, cause: str) -> None:
        """A worker left without a goodbye: show it, and why, for a while."""
        view = self._worker(link)
        view.state = pool_service_pb2.WORKER_STATE_LOST
        view.detail = shown(_LOST + cause)
        # Those are settled without it. Its arrays are not: if its process lives, so do they.
        view.running = view.open_windows = 0
        self._lost.pop(view.instance, None)
        self._lost[view.instance] = _Lost(view, self._clock.now() + LOST_SECONDS)
        while len(self._lost) > MAX_LOST:
            del self._lost[next(iter(self._lost))]
        if link.local_slot:
            words = self._local.last_words(link.local_slot, view.instance)
            self._errands.start(self._add_words(view, words), f"last words of {short(view.instance)}")

    def take(self) -> WatchPoolResponse:
        """The pool as it is now; `taken_at` is left to the caller."""
        now = self._clock.now()
        places = {place.instance: place for place in self._local.views() if place.instance}
        for instance, lost in tuple(self._lost.items()):
            # One whose process lives, as where it was stopped, may still hold arrays, whoever asks when.
            if instance in self._links or (lost.until <= now and instance not in places):
                del self._lost[instance]
        return pool_service_pb2.WatchPoolResponse(
            workers=[
                *(self._worker(link, places.get(instance)) for instance, link in self._links.items()),
                *self._places(),
                *(_still(lost.view, places.get(instance)) for instance, lost in self._lost.items()),
            ],
            queued_runs=self._dispatcher.queued,
            max_queued_runs=self._max_queue,
            min_local_workers=self._bounds[0],
            max_local_workers=self._bounds[1],
            counters=self._counters.view(),
            stopping=_STOPPING if self._dispatcher.closed else "",
        )

    def _worker(self, link: WorkerLink, place: LocalView | None = None) -> WorkerView:
        worker = link.worker
        state, standing = _standing(link)
        detail = _joined(standing, worker.says, "" if place is None else place.condition)
        view = pool_service_pb2.WorkerView(
            instance=worker.instance,
            address=link.address,
            state=state,
            environments=sorted(worker.environments),
            running=worker.busy,
            max_concurrent_runs=worker.slots,
            open_windows=worker.load.open_windows,
            held_array_bytes=worker.load.held_array_bytes,
            detail=shown(detail),
            local_slot=link.local_slot,
            pid=_pid(place),
        )
        if (known := self._registered.get(worker.instance)) is not None:
            view.registered_at.FromNanoseconds(int(known[1] * 1e9))
        return view

    def _places(self) -> list[WorkerView]:
        """The places of local workers of which the pool does not know."""
        views: list[WorkerView] = []
        for place in self._local.views():
            if place.instance in self._links or place.instance in self._lost:
                continue
            state, detail = _unregistered(place)
            views.append(
                pool_service_pb2.WorkerView(
                    instance=place.instance,
                    state=state,
                    detail=shown(detail),
                    local_slot=str(place.slot),
                    pid=_pid(place),
                )
            )
        return views

    async def _add_words(self, view: WorkerView, words: Awaitable[str]) -> None:
        if said := await words:
            # The cause may be the first of these words.
            known = view.detail.removeprefix(_LOST)
            view.detail = shown(_LOST + (said if said.startswith(known) else f"{known}; {said}"))


def shown(text: str) -> str:
    """Text for people: bounded, and with 8 digits of any request_id, which is a capability."""
    return masked(text)[:_MAX_DETAIL_CHARACTERS]


def _standing(link: WorkerLink) -> tuple[WorkerState.ValueType, str]:
    """Where a registered worker stands, and why."""
    if link.worker.draining:
        return pool_service_pb2.WORKER_STATE_DRAINING, "it takes no new runs"
    if not link.reachable:
        cause = link.unreachable_because
        said = f"the broker cannot reach it: {cause}" if cause else "the broker has yet to reach it"
        return pool_service_pb2.WORKER_STATE_LOADING, said
    if not link.worker.environments:
        return pool_service_pb2.WORKER_STATE_LOADING, "its environments are loading"
    return pool_service_pb2.WORKER_STATE_READY, ""


def _unregistered(place: LocalView) -> tuple[WorkerState.ValueType, str]:
    """Where a local worker stands that is not registered, and why."""
    if place.state == "LEAVING":
        return pool_service_pb2.WORKER_STATE_DRAINING, place.condition
    if place.instance:
        return pool_service_pb2.WORKER_STATE_LOST, place.condition
    return pool_service_pb2.WORKER_STATE_STARTING, _joined(place.condition, place.detail)


def _still(view: WorkerView, place: LocalView | None) -> WorkerView:
    """That of a lost worker, with what its process does if it lives."""
    if place is None:
        return view
    living = pool_service_pb2.WorkerView()
    living.CopyFrom(view)
    living.pid, living.detail = _pid(place), shown(_joined(view.detail, place.condition))
    return living


def _pid(place: LocalView | None) -> int:
    return 0 if place is None or place.pid is None else place.pid


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)

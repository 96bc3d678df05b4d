"""How routes come, stay and go: what the broker remembers, and for how long."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from env_broker.remembered import RememberedCancels
from env_broker.route import CancelOutcome, Decision, Route, RoutesFullError, RouteState
from env_broker.route import answer as answer_of
from env_broker.route import key as key_of
from env_broker.tombstones import Tombstones

RETENTION_MARGIN_SECONDS: Final = 10.0
"""How long a replied route outlives the window: the worker, not the broker, decides what is too late."""


class RouteMemory:
    """request_id -> `Route`, and tombstones of those that are over.

    Args:
        limit: most runs at once that wait or are live.
        retained_limit: most routes at once of runs whose streams are over and whose outcomes are not known
            yet: with that many, no run is taken. Those that were taken before are still retained.
        known_limit: most ids at once, tombstones included. A route has the room of its tombstone.
        remembered_limit: most cancels of unknown runs that are remembered at once.
        window: seconds for which a cancel of an unknown run is remembered; tombstones stay for two of them.
            The registry raises the attribute to the largest window that its workers advertise.
    """

    def __init__(
        self,
        *,
        limit: int = 65_536,
        retained_limit: int = 262_144,
        known_limit: int = 524_288,
        remembered_limit: int = 16_384,
        window: float = 60.0,
    ) -> None:
        self.window = window
        self._limit: Final = limit
        self._retained_limit: Final = retained_limit
        self._known_limit: Final = known_limit
        self._routes: dict[bytes, Route] = {}
        # In the order in which they were retained; one with an earlier end than its elders' stays with them.
        self._retained: OrderedDict[bytes, Route] = OrderedDict()
        self._tombstones: Tombstones[Decision] = Tombstones()
        self._remembered = RememberedCancels(remembered_limit)

    def __len__(self) -> int:
        return len(self._routes)

    def get(self, request_id: str) -> Route | None:
        """The run's route; None where it is unknown or over. A confirmation goes to its `worker`."""
        return self._routes.get(key_of(request_id))

    def expire(self, now: float) -> None:
        """Forget what has been retained and remembered for long enough."""
        while self._retained:
            route = next(iter(self._retained.values()))
            if route.until > now:
                break
            replied = route.state is RouteState.REPLIED
            outcome = CancelOutcome.TOO_LATE if replied else CancelOutcome.ABORTED
            if replied and route.cancelled:
                outcome = CancelOutcome.REMEMBERED  # no worker has said what became of it
            self._bury(route, outcome, now, worker_lost=route.worker_lost)
        self._forget(now)

    def _enter(self, key: bytes, request_id: str, session_id: str) -> Route:
        if (live := len(self._routes) - len(self._retained)) >= self._limit:
            raise RoutesFullError(
                f"the broker holds {live} runs, its limit is {self._limit}; send the run again later"
            )
        if len(self._retained) >= self._retained_limit:
            raise RoutesFullError(
                f"{len(self._retained)} replies can still be taken back, the broker's limit is "
                f"{self._retained_limit}; send the run again later; confirm episodes (a session does), or "
                "start workers with a shorter --late-cancel-seconds"
            )
        if (known := len(self._routes) + len(self._tombstones)) >= self._known_limit:
            raise RoutesFullError(
                f"the broker remembers {known} request_ids, its limit is {self._known_limit}; send the "
                f"run again later: each is forgotten {2 * self.window:g} s after its run"
            )
        route = self._routes[key] = Route(request_id, session_id)
        return route

    def _retain(self, route: Route, now: float, window: float) -> None:
        """The route's stream is over: keep it for as long as its outcome may yet change."""
        if route.answer is not None:
            self._bury(route, CancelOutcome.ABORTED, now)
            return
        route.until = now + window + RETENTION_MARGIN_SECONDS
        self._retained[key_of(route.request_id)] = route

    def _bury(
        self, route: Route, outcome: CancelOutcome, now: float, *, worker_lost: bool = False
    ) -> Decision:
        """Replace the route by a tombstone with what was answered before, or else `outcome`."""
        key = key_of(route.request_id)
        answer = route.answer or answer_of(outcome, worker_lost=worker_lost)
        del self._routes[key]
        self._retained.pop(key, None)
        self._tombstones.add(key, answer, now + 2 * self.window)
        return answer

    def _forget(self, now: float) -> None:
        self._tombstones.forget(now)
        self._remembered.forget(now)

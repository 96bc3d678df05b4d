"""Where each run is, so that a Cancel finds it.

Synchronous and without a clock: every call that depends on time takes `now` in monotonic seconds, which must
not run backwards. Losing a race is normal and returns False, and a run that is unknown counts as over; what
cannot happen raises `RouteError` and changes nothing. A `worker` is a worker's instance.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from env_broker.remembered import RememberedCancels
from env_broker.route import (
    Action,
    CancelOutcome,
    Decision,
    DuplicateRouteError,
    Route,
    RoutesFullError,
    RouteState,
)
from env_broker.route import answer as answer_of
from env_broker.route import key as key_of
from env_broker.tombstones import Tombstones

RETENTION_MARGIN_SECONDS: Final = 10.0
"""How long a replied route outlives the window: the worker, not the broker, decides what is too late."""


class RouteTable:
    """request_id -> `Route`, and tombstones of those that are over.

    Args:
        limit: most routes at once: waiting, live and retained ones.
        known_limit: most ids at once, tombstones included. A route has the room of its tombstone.
        remembered_limit: most cancels of unknown runs that are remembered at once.
        window: seconds for which a cancel of an unknown run is remembered; tombstones stay for two of them.
            The registry raises the attribute to the largest window that its workers advertise.
    """

    def __init__(
        self,
        *,
        limit: int = 65_536,
        known_limit: int = 524_288,
        remembered_limit: int = 16_384,
        window: float = 60.0,
    ) -> None:
        self.window = window
        self._limit: Final = limit
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

    def session_routes(self, session_id: str) -> list[str]:
        """The session's runs that a cancel could still end or take back."""
        return [
            route.request_id
            for route in self._routes.values()
            if route.session_id == session_id and route.answer is None
        ]

    def queue(self, request_id: str, session_id: str, now: float) -> bool:
        """Enter a new run. False: a cancel of it was remembered, and it is over (ABORTED).

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
            DuplicateRouteError: the id is known. The first run must not be cancelled for this.
            RoutesFullError: `limit` or `known_limit` is reached.
        """
        key = key_of(request_id)
        self._forget(now)
        if key in self._routes or self._tombstones.get(key) is not None:
            raise DuplicateRouteError(
                f"request_id {request_id[:8]}... is known; that run is untouched: do not cancel it, send the "
                "new run under a new request_id"
            )
        route = self._enter(key, request_id, session_id)
        if not self._remembered.take(key):
            return True
        self._bury(route, CancelOutcome.ABORTED, now)
        return False

    def place(self, request_id: str, worker: str) -> bool:
        """The run goes to `worker`. False: it was cancelled first, and must not be sent."""
        route = self.get(request_id)
        if route is None:
            return False
        route.expect(RouteState.QUEUED, "place")
        route.state, route.worker = RouteState.PLACED, worker
        return True

    def unplace(self, request_id: str, now: float) -> bool:
        """The worker refused the run before admission: it waits again. False: a cancel ended it."""
        route = self.get(request_id)
        if route is None:
            return False
        route.expect(RouteState.PLACED, "unplace")
        if route.cancelled:
            self._bury(route, CancelOutcome.ABORTED, now)
            return False
        route.state, route.worker = RouteState.QUEUED, None
        return True

    def withdraw(self, request_id: str, now: float) -> bool:
        """The run leaves without ever being admitted (NOT_ADMITTED), so that its id may come again.

        False: it was cancelled, and its id is spent.
        """
        if (route := self.get(request_id)) is None:
            return False
        if route.state is RouteState.PLACED and not self.unplace(request_id, now):
            return False
        route.expect(RouteState.QUEUED, "withdraw")
        del self._routes[key_of(request_id)]
        return True

    def replied(self, request_id: str, now: float, window: float) -> bool:
        """The worker's reply passed with status OK. Call it before the client gets that status.

        Args:
            window: the largest window that workers advertise, in seconds. The route is retained for that and
                RETENTION_MARGIN_SECONDS.

        False: a cancel was already answered ABORTED or DISCARDED, or the worker was given up. The client must
        not be told OK.
        """
        route = self.get(request_id)
        if route is None:
            return False
        route.expect(RouteState.PLACED, "replied")
        if route.answer is not None and route.answer.outcome is not CancelOutcome.TOO_LATE:
            self._bury(route, CancelOutcome.ABORTED, now)
            return False
        route.state = RouteState.REPLIED
        self._retain(route, now, window)
        return True

    def cut(self, request_id: str, now: float, window: float) -> bool:
        """The hop to the worker broke before status OK passed: the worker may count its reply as delivered.

        So cancels, the broker's own among them, still go there, for as long as after a reply.
        """
        route = self.get(request_id)
        if route is None:
            return False
        route.expect(RouteState.PLACED, "cut")
        self._retain(route, now, window)
        return True

    def ended(self, request_id: str, now: float) -> bool:
        """The run is over without a reply: refused, failed, cancelled. False where that is known already.

        Safe in a `finally` of a run that `queue` accepted: a route that is retained stays.
        """
        route = self.get(request_id)
        if route is None or not route.open:
            return False
        self._bury(route, CancelOutcome.ABORTED, now)
        return True

    def adopt(
        self, request_id: str, session_id: str, worker: str, now: float, *, replied: bool, window: float
    ) -> bool:
        """A worker that registers reports a run, or a reply that can still be taken back; after `returned`.

        True: a cancel of it is remembered, or it was given up: send the worker its Cancel.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
            RoutesFullError: the run is unknown and `limit` or `known_limit` is reached.
        """
        key = key_of(request_id)
        self._forget(now)
        if (route := self._routes.get(key)) is not None:
            if route.worker != worker:
                return not replied  # the broker was restarted and the id sent again: nobody reads that stream
            return route.cancelled and route.answer is None
        if (decision := self._tombstones.get(key)) is not None:
            return decision.outcome is not CancelOutcome.TOO_LATE
        route = self._enter(key, request_id, session_id)
        route.worker = worker
        route.state = RouteState.REPLIED if replied else RouteState.PLACED
        route.cancelled = self._remembered.take(key)
        self._retain(route, now, window)
        return route.cancelled

    def cancel(self, request_id: str, now: float) -> Decision:
        """Decide about a Cancel. Idempotent: once an outcome was answered, it is answered again.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
            RoutesFullError: the run is unknown and `remembered_limit` is reached; nothing is remembered.
        """
        key = key_of(request_id)
        self._forget(now)
        if (route := self._routes.get(key)) is None:
            if (decision := self._tombstones.get(key)) is not None:
                return decision
            self._remembered.add(key, now + self.window)
            return Decision(Action.REMEMBER, CancelOutcome.REMEMBERED)
        if route.answer is not None:
            return route.answer
        if route.state is RouteState.QUEUED:
            self._bury(route, CancelOutcome.ABORTED, now)
            return Decision(Action.REMOVE_FROM_QUEUE, CancelOutcome.ABORTED)
        if route.worker_lost:
            return self._bury(route, CancelOutcome.TOO_LATE, now, worker_lost=True)
        route.cancelled = True
        return Decision(Action.FORWARD, worker=route.worker)

    def answered(self, request_id: str, outcome: CancelOutcome) -> None:
        """The worker's answer to a Cancel; the first one stays. A confirmation that succeeded is TOO_LATE."""
        route = self.get(request_id)
        if route is not None and route.answer is None and outcome is not CancelOutcome.REMEMBERED:
            route.answer = answer_of(outcome)

    def lose(self, worker: str, now: float) -> list[str]:
        """The worker is lost; the runs that are given up with it, whose callers must hear UNAVAILABLE.

        Hold that list for the worker until it acknowledges it. Replied routes stay, for `returned`.
        """
        given_up: list[str] = []
        for route in [route for route in self._routes.values() if route.worker == worker]:
            if route.state is RouteState.REPLIED:
                route.worker_lost = True
            else:
                self._bury(route, CancelOutcome.ABORTED, now, worker_lost=True)
                given_up.append(route.request_id)
        return given_up

    def returned(self, worker: str) -> None:
        """The worker registered again: it is asked about its replied runs, reported or not.

        It settled those that it does not report, and only it knows whether they were delivered or discarded.
        """
        for route in self._routes.values():
            if route.worker == worker:
                route.worker_lost = False

    def expire(self, now: float) -> None:
        """Forget what has been retained and remembered for long enough."""
        while self._retained:
            route = next(iter(self._retained.values()))
            if route.until > now:
                break
            replied = route.state is RouteState.REPLIED
            self._bury(route, CancelOutcome.TOO_LATE if replied else CancelOutcome.ABORTED, now)
        self._forget(now)

    def _enter(self, key: bytes, request_id: str, session_id: str) -> Route:
        if len(self._routes) >= self._limit:
            raise RoutesFullError(
                f"the broker holds {len(self._routes)} routes, its limit is {self._limit}; send the run "
                "again later"
            )
        if (known := len(self._routes) + len(self._tombstones)) >= self._known_limit:
            raise RoutesFullError(
                f"the broker remembers {known} request_ids, its limit is {self._known_limit}; send the "
                f"run again later: each is forgotten {2 * self.window:g} s after its run"
            )
        route = self._routes[key] = Route(request_id, session_id)
        return route

    def _retain(self, route: Route, now: float, window: float) -> None:
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

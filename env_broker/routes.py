"""Where each run is, so that a Cancel finds it.

Synchronous and without a clock: every call that depends on time takes `now` in monotonic seconds, which must
not run backwards. Losing a race is normal and returns False, and a run that is unknown counts as over; what
cannot happen raises `RouteError` and changes nothing. A `worker` is a worker's instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from env_broker.route import (
    Action,
    CancelOutcome,
    ConfirmOutcome,
    Decision,
    DuplicateRouteError,
    Route,
    RouteState,
    confirm_outcome,
)
from env_broker.route import answer as answer_of
from env_broker.route import key as key_of
from env_broker.route_memory import RETENTION_MARGIN_SECONDS, RouteMemory

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["RETENTION_MARGIN_SECONDS", "RouteTable"]


class RouteTable(RouteMemory):
    """What happens to runs, and what is done about their cancels and confirmations; see RouteMemory."""

    def session_runs(self, session_ids: Container[str]) -> list[Route]:
        """These sessions' runs that a cancel could still end or take back."""
        return [r for r in self._routes.values() if r.answer is None and r.session_id in session_ids]

    def lose_sessions(self, session_ids: Container[str]) -> list[str]:
        """These sessions are lost; the runs to be cancelled for them.

        All are marked: what a worker has replied that is lost, or that is lost before it has answered, is
        cancelled when that worker is back.
        """
        runs = self.session_runs(session_ids)
        for route in runs:
            route.cancelled = True
        return [route.request_id for route in runs if not route.worker_lost]

    def queue(self, request_id: str, session_id: str, now: float) -> bool:
        """Enter a new run. False: a cancel of it was remembered, and it is over (ABORTED).

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
            DuplicateRouteError: the id is known. The first run must not be cancelled for this.
            RoutesFullError: `limit`, `retained_limit` or `known_limit` is reached.
        """
        key = key_of(request_id)
        self._forget(now)
        if key in self._routes or self._tombstones.get(key) is not None:
            raise DuplicateRouteError(request_id)
        route = self._enter(key, request_id, session_id)
        if not self._remembered.take(key):
            return True
        self._bury(route, CancelOutcome.ABORTED, now)
        return False

    def place(self, request_id: str, worker: str) -> bool:
        """The run goes to `worker`. False: it, or its session, was ended first, and it must not be sent."""
        route = self.get(request_id)
        if route is None or route.cancelled:
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
            RoutesFullError: the run is unknown, and `limit`, `retained_limit` or `known_limit` is reached.
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

        But for REMEMBERED, and for a reply of a lost worker: that worker hears of it when it is back, and its
        answer counts.

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
        route.cancelled = True
        if route.worker_lost:
            return answer_of(CancelOutcome.TOO_LATE, worker_lost=True)
        return Decision(Action.FORWARD, worker=route.worker)

    def answered(self, request_id: str, outcome: CancelOutcome, now: float) -> CancelOutcome:
        """The worker's answer to a Cancel. Returns what the caller is told: the first one stays."""
        key = key_of(request_id)
        route = self._routes.get(key)
        decided = route.answer if route is not None else self._tombstones.get(key)
        if decided is not None and decided.outcome not in (None, CancelOutcome.REMEMBERED):
            return decided.outcome
        if decided is not None:
            self._tombstones.amend(key, answer_of(outcome))
        if route is not None and outcome is not CancelOutcome.REMEMBERED:
            route.answer = answer_of(outcome)
            if not route.open:
                self._bury(route, outcome, now)
        return outcome

    def confirm(self, request_id: str, now: float) -> ConfirmOutcome | None:
        """Answer a confirmation. None: ask the route's `worker`, which replied, and report to `confirmed`.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
        """
        key = key_of(request_id)
        self._forget(now)
        route = self._routes.get(key)
        if (decided := route.answer if route is not None else self._tombstones.get(key)) is not None:
            return confirm_outcome(decided)
        if route is None or route.state is not RouteState.REPLIED:
            return ConfirmOutcome.UNKNOWN
        return ConfirmOutcome.WORKER_LOST if route.worker_lost else None

    def confirmed(self, request_id: str, outcome: ConfirmOutcome, now: float) -> None:
        """The worker's answer to a confirmation. It decides every further cancel, and is all that stays."""
        route = self.get(request_id)
        if route is None or route.state is not RouteState.REPLIED:
            return
        if outcome is ConfirmOutcome.CONFIRMED:
            self._bury(route, CancelOutcome.TOO_LATE, now)
        elif outcome is ConfirmOutcome.DISCARDED:
            self._bury(route, CancelOutcome.DISCARDED, now)

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

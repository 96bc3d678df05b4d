"""Cancels: from a caller to the worker that has, or just had, its run; and the broker's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from envtrio.v1 import env_service_pb2, errors_pb2

from env_broker.route import (
    Action,
    CancelOutcome,
    Decision,
    InvalidRequestIdError,
    RoutesFullError,
    RouteState,
)
from env_broker.status import Refusal, short
from env_broker.worker_cancel import SILENCE_SECONDS, TO_WIRE, PassedOn, ask, ask_all, silent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from env_broker.clock import Clock
    from env_broker.dispatch import Dispatcher
    from env_broker.link import WorkerLink
    from env_broker.routes import RouteTable
    from env_broker.tasks import Errands

log = logging.getLogger(__name__)

_OWN_TRIES: Final = 8
_FIRST_DELAY_SECONDS: Final = 0.25


class Canceller:
    """Routes cancels by request_id.

    Args:
        routes: where each run is.
        links: instance -> the worker's link, kept by the registry.
        dispatcher: has the runs that still wait.
        errands: owns the broker's own cancels.
        on_sent: called with the request_id of each run whose worker is asked.
        on_taken_back: called with the request_id of each run that was answered ABORTED or DISCARDED.
    """

    def __init__(
        self,
        *,
        routes: RouteTable,
        links: Mapping[str, WorkerLink],
        dispatcher: Dispatcher,
        errands: Errands,
        clock: Clock,
        on_sent: Callable[[str], None] = lambda _: None,
        on_taken_back: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._routes: Final = routes
        self._links: Final = links
        self._dispatcher: Final = dispatcher
        self._errands: Final = errands
        self._on_sent: Final = on_sent
        self._on_taken_back: Final = on_taken_back
        self._clock: Final = clock

    async def cancel(
        self, request_id: str, cause: str, refusal: Refusal | None = None
    ) -> env_service_pb2.CancelResponse:
        """Decide about one Cancel, asking the worker where the run is or was.

        Args:
            refusal: how the run ends if it waits here; CANCEL_REQUESTED if absent.

        Raises:
            Refusal: INVALID_REQUEST_ID, TABLE_FULL, WORKER_SILENT.
            PassedOn: the worker refused it.
        """
        decision = self._decide(request_id)
        if decision.outcome is CancelOutcome.REMEMBERED:
            # No route leads to it. A worker may have settled it before this broker was started.
            found = await ask_all(tuple(self._links.values()), request_id, cause, self._clock)
            if found is not None:
                return self._answered(request_id, *found, cause)
            decision = self._decide(request_id)  # it may have come meanwhile
        if decision.action is Action.REMOVE_FROM_QUEUE:
            self._dispatcher.remove(request_id, refusal or cancel_requested(request_id))
        if decision.action is not Action.FORWARD:
            return _response(decision)
        link = self._links.get(decision.worker or "")
        if link is None:
            raise silent(request_id, decision.worker or "", "has no connection to this broker")
        self._on_sent(request_id)
        try:
            outcome = await ask(link, request_id, cause, self._clock)
        except Refusal:
            # It was lost while it was asked, and the table now knows what that means; but it may be back.
            if link.lost and (decision := self._decide(request_id)).action is not Action.FORWARD:
                return _response(decision)
            raise
        return self._answered(request_id, self._as_the_run_stands(request_id, outcome), link.name, cause)

    def tell(self, request_id: str, cause: str) -> None:
        """Cancel on the broker's own account, as an owned, bounded errand: callable in any `finally`."""

        async def attempt() -> bool:
            response = await self.cancel(request_id, cause)
            return response.outcome != env_service_pb2.CANCEL_OUTCOME_REMEMBERED

        self._errands.start(self._insist(attempt, request_id), f"cancel {short(request_id)}")

    def lose_sessions(self, session_ids: Collection[str]) -> None:
        """Cancel what these sessions, which were lost, have left: live runs, and replies not confirmed."""
        runs = self._routes.lose_sessions(session_ids)
        log.warning("sessions=%s lost, runs cancelled=%d", [*map(short, session_ids)], len(runs))
        if runs:
            # Nothing else would cancel them. There are no more lists than sessions are lost while tries last.
            name = f"cancel {len(runs)} runs of lost sessions"
            self._errands.start(self._cancel_lost(runs), name, always=True)

    async def _cancel_lost(self, request_ids: Sequence[str]) -> None:
        async def end(request_id: str) -> None:
            async def attempt() -> bool:
                # Each worker has its own, and none while it is waited for: a silent one holds no other up.
                async with self._gate(request_id):
                    await self.cancel(request_id, "its session was lost", session_lost(request_id))
                return True

            await self._insist(attempt, request_id)

        async with asyncio.TaskGroup() as ends:
            for request_id in request_ids:
                ends.create_task(end(request_id))

    def tell_worker(self, instance: str, request_id: str, cause: str) -> None:
        """As `tell`, for a run that this worker reports and whose cancel may have been answered long ago."""

        async def attempt() -> bool:
            link = self._links.get(instance)
            if link is None:
                return True  # lost again: it will report the run again
            outcome = await ask(link, request_id, cause, self._clock)
            route = self._routes.get(request_id)
            if route is None or route.worker == instance:
                self._routes.answered(request_id, outcome, self._clock.now())
            return True

        self._errands.start(self._insist(attempt, request_id), f"cancel {short(request_id)}")

    def _gate(self, request_id: str) -> contextlib.AbstractAsyncContextManager[None]:
        route = self._routes.get(request_id)
        link = None if route is None else self._links.get(route.worker or "")
        return contextlib.nullcontext() if link is None else link.gate

    def _answered(
        self, request_id: str, outcome: CancelOutcome, worker: str, cause: str
    ) -> env_service_pb2.CancelResponse:
        outcome = self._routes.answered(request_id, outcome, self._clock.now())
        if outcome in (CancelOutcome.ABORTED, CancelOutcome.DISCARDED):
            self._on_taken_back(request_id)
        log.info("run=%s worker=%s cancel=%s cause=%r", short(request_id), worker, outcome.name, cause[:64])
        return env_service_pb2.CancelResponse(outcome=TO_WIRE[outcome])

    def _decide(self, request_id: str) -> Decision:
        try:
            return self._routes.cancel(request_id, self._clock.now())
        except InvalidRequestIdError as error:
            raise Refusal("INVALID_REQUEST_ID", str(error), field="request_id") from None
        except RoutesFullError as error:
            raise Refusal("TABLE_FULL", str(error), retry_after=1.0) from None

    def _as_the_run_stands(self, request_id: str, outcome: CancelOutcome) -> CancelOutcome:
        """A worker that does not know a run yet which is open here will end it at its arrival: ABORTED."""
        route = self._routes.get(request_id)
        overtaken = route is not None and route.state is RouteState.PLACED and route.open
        return CancelOutcome.ABORTED if overtaken and outcome is CancelOutcome.REMEMBERED else outcome

    async def _insist(self, attempt: Callable[[], Awaitable[bool]], request_id: str) -> None:
        delay = _FIRST_DELAY_SECONDS
        for _ in range(_OWN_TRIES):
            try:
                if await attempt():
                    return
            except (Refusal, PassedOn) as error:
                log.warning("run=%s cancel failed: %s", short(request_id), error)
            await self._clock.sleep(delay)
            delay = min(2 * delay, SILENCE_SECONDS)
        log.error("run=%s cancel was given up after %d tries", short(request_id), _OWN_TRIES)


def session_lost(request_id: str) -> Refusal:
    """The end of a run whose client is gone."""
    return Refusal(
        "SESSION_LOST",
        f"the session of run {short(request_id)} ended without a goodbye and did not come back in its grace; "
        "nothing of the run is kept",
        request_id=short(request_id),
    )


def cancel_requested(request_id: str) -> Refusal:
    """The end of a run that was cancelled."""
    return Refusal(
        "CANCEL_REQUESTED",
        f"run {short(request_id)} was cancelled; nothing of it is kept",
        request_id=short(request_id),
    )


def _response(decision: Decision) -> env_service_pb2.CancelResponse:
    response = env_service_pb2.CancelResponse()
    if decision.outcome is not None:
        response.outcome = TO_WIRE[decision.outcome]
    if decision.worker_lost:
        response.reason = errors_pb2.ERROR_REASON_WORKER_LOST
    return response

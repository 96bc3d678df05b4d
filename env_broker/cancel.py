"""Cancels: from a caller to the worker that has, or just had, its run; and the broker's own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import grpc.aio
from envtrio.v1 import env_service_pb2, errors_pb2

from env_broker.clock import Clock, within
from env_broker.hello import PROTOCOL_GENERATION
from env_broker.link import Leg, WorkerLink
from env_broker.route import (
    Action,
    CancelOutcome,
    Decision,
    InvalidRequestIdError,
    RoutesFullError,
    RouteState,
)
from env_broker.status import Refusal, error_reason, short

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from env_broker.dispatch import Dispatcher
    from env_broker.routes import RouteTable
    from env_broker.tasks import Errands

log = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 5.0
"""How long a worker may take to answer a Cancel."""

_OWN_TRIES: Final = 8
_FIRST_DELAY_SECONDS: Final = 0.25
_MAX_CAUSE_BYTES: Final = 256
_MOST_AT_ONCE: Final = 1_024
"""Cancels of lost sessions that are under way at once."""

_TO_WIRE: Final[Mapping[CancelOutcome, env_service_pb2.CancelOutcome.ValueType]] = {
    CancelOutcome.ABORTED: env_service_pb2.CANCEL_OUTCOME_ABORTED,
    CancelOutcome.DISCARDED: env_service_pb2.CANCEL_OUTCOME_DISCARDED,
    CancelOutcome.TOO_LATE: env_service_pb2.CANCEL_OUTCOME_TOO_LATE,
    CancelOutcome.REMEMBERED: env_service_pb2.CANCEL_OUTCOME_REMEMBERED,
}
_FROM_WIRE: Final = {wire: outcome for outcome, wire in _TO_WIRE.items()}


class PassedOn(Exception):
    """A worker's own status, to be passed to the caller as it came."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(error.details())
        self.error: Final = error


class _CancelLeg(Leg):
    """A Cancel that waits for its worker's answer."""

    def __init__(self, call: grpc.aio.Call) -> None:
        self._call: Final = call

    def worker_lost(self) -> None:
        self._call.cancel()


class Canceller:
    """Routes cancels by request_id.

    Args:
        routes: where each run is.
        links: instance -> the worker's link, kept by the registry.
        dispatcher: has the runs that still wait.
        errands: owns the broker's own cancels.
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
        on_taken_back: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._routes: Final = routes
        self._links: Final = links
        self._dispatcher: Final = dispatcher
        self._errands: Final = errands
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
        if decision.action is Action.REMOVE_FROM_QUEUE:
            self._dispatcher.remove(request_id, refusal or cancel_requested(request_id))
        if decision.action is not Action.FORWARD:
            return _response(decision)
        link = self._links.get(decision.worker or "")
        if link is None:
            raise _silent(request_id, decision.worker or "", "has no connection to this broker")
        try:
            outcome = await self._ask(link, request_id, cause)
        except Refusal:
            if link.lost:  # it was lost while it was asked, and the table now knows what that means
                return _response(self._decide(request_id))
            raise
        outcome = self._as_the_run_stands(request_id, outcome)
        outcome = self._routes.answered(request_id, outcome, self._clock.now())
        if outcome in (CancelOutcome.ABORTED, CancelOutcome.DISCARDED):
            self._on_taken_back(request_id)
        log.info(
            "run=%s worker=%s cancel=%s cause=%r", short(request_id), link.name, outcome.name, cause[:64]
        )
        return env_service_pb2.CancelResponse(outcome=_TO_WIRE[outcome])

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
            self._errands.start(self._cancel_lost(runs), f"cancel {len(runs)} runs of lost sessions")

    async def _cancel_lost(self, request_ids: Sequence[str]) -> None:
        gate = asyncio.Semaphore(_MOST_AT_ONCE)

        async def end(request_id: str) -> None:
            async def attempt() -> bool:
                await self.cancel(request_id, "its session was lost", session_lost(request_id))
                return True

            async with gate:
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
            outcome = await self._ask(link, request_id, cause)
            route = self._routes.get(request_id)
            if route is not None and route.worker == instance:
                self._routes.answered(request_id, outcome, self._clock.now())
            return True

        self._errands.start(self._insist(attempt, request_id), f"cancel {short(request_id)}")

    def _decide(self, request_id: str) -> Decision:
        try:
            return self._routes.cancel(request_id, self._clock.now())
        except InvalidRequestIdError as error:
            raise Refusal("INVALID_REQUEST_ID", str(error), field="request_id") from None
        except RoutesFullError as error:
            raise Refusal("TABLE_FULL", str(error), retry_after=1.0) from None

    async def _ask(self, link: WorkerLink, request_id: str, cause: str) -> CancelOutcome:
        request = env_service_pb2.CancelRequest(
            request_id=request_id,
            protocol_generation=PROTOCOL_GENERATION,
            cause=cause.encode()[:_MAX_CAUSE_BYTES].decode(errors="ignore"),
        )
        call = link.cancel(request)
        leg = _CancelLeg(call)
        link.legs.add(leg)
        try:
            response = await within(self._clock, SILENCE_SECONDS, _result(call))
            return _FROM_WIRE[response.outcome]
        except TimeoutError:
            raise _silent(request_id, link.name, f"did not answer in {SILENCE_SECONDS:g} s") from None
        except KeyError:
            raise Refusal(
                "INTERNAL", f"worker {link.name} answered a Cancel without an outcome; upgrade it"
            ) from None
        except grpc.aio.AioRpcError as error:
            if error_reason(tuple(error.trailing_metadata() or ())) is not None:
                raise PassedOn(error) from None
            raise _silent(request_id, link.name, f"could not be asked ({error.code().name})") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if link.lost and (task is None or not task.cancelling()):
                raise _silent(request_id, link.name, "was lost") from None
            raise
        finally:
            link.legs.discard(leg)
            call.cancel()

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


async def _result(
    call: grpc.aio.UnaryUnaryCall[env_service_pb2.CancelRequest, env_service_pb2.CancelResponse],
) -> env_service_pb2.CancelResponse:
    return await call


def _response(decision: Decision) -> env_service_pb2.CancelResponse:
    response = env_service_pb2.CancelResponse()
    if decision.outcome is not None:
        response.outcome = _TO_WIRE[decision.outcome]
    if decision.worker_lost:
        response.reason = errors_pb2.ERROR_REASON_WORKER_LOST
    return response


def _silent(request_id: str, worker: str, what: str) -> Refusal:
    return Refusal(
        "WORKER_SILENT",
        f"worker {worker}, which has run {short(request_id)}, {what}; repeat the Cancel until its window is "
        "over",
        worker=worker,
        request_id=short(request_id),
        limit=f"{SILENCE_SECONDS:g} s",
    )

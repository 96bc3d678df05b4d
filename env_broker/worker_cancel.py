"""One Cancel at one worker, or at all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import grpc.aio
from envtrio.v1 import env_service_pb2

from env_broker.clock import Clock, within
from env_broker.hello import PROTOCOL_GENERATION
from env_broker.link import Leg, WorkerLink
from env_broker.route import CancelOutcome
from env_broker.status import Refusal, error_reason, short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SILENCE_SECONDS: Final = 5.0
"""How long a worker may take to answer a Cancel."""

_MAX_CAUSE_BYTES: Final = 256

TO_WIRE: Final[Mapping[CancelOutcome, env_service_pb2.CancelOutcome.ValueType]] = {
    CancelOutcome.ABORTED: env_service_pb2.CANCEL_OUTCOME_ABORTED,
    CancelOutcome.DISCARDED: env_service_pb2.CANCEL_OUTCOME_DISCARDED,
    CancelOutcome.TOO_LATE: env_service_pb2.CANCEL_OUTCOME_TOO_LATE,
    CancelOutcome.REMEMBERED: env_service_pb2.CANCEL_OUTCOME_REMEMBERED,
}
"""Outcomes as they cross."""
_FROM_WIRE: Final = {wire: outcome for outcome, wire in TO_WIRE.items()}


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


async def ask(link: WorkerLink, request_id: str, cause: str, clock: Clock) -> CancelOutcome:
    """The worker's answer.

    Raises:
        Refusal: WORKER_SILENT, or INTERNAL where the answer says nothing.
        PassedOn: the worker refused it.
    """
    request = env_service_pb2.CancelRequest(
        request_id=request_id,
        protocol_generation=PROTOCOL_GENERATION,
        cause=cause.encode()[:_MAX_CAUSE_BYTES].decode(errors="ignore"),
    )
    call = link.cancel(request)
    leg = _CancelLeg(call)
    link.legs.add(leg)
    try:
        response = await within(clock, SILENCE_SECONDS, _result(call))
        return _FROM_WIRE[response.outcome]
    except TimeoutError:
        raise silent(request_id, link.name, f"did not answer in {SILENCE_SECONDS:g} s") from None
    except KeyError:
        raise Refusal(
            "INTERNAL", f"worker {link.name} answered a Cancel without an outcome; upgrade it"
        ) from None
    except grpc.aio.AioRpcError as error:
        if error_reason(tuple(error.trailing_metadata() or ())) is not None:
            raise PassedOn(error) from None
        raise silent(request_id, link.name, f"could not be asked ({error.code().name})") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if link.lost and (task is None or not task.cancelling()):
            raise silent(request_id, link.name, "was lost") from None
        raise
    finally:
        link.legs.discard(leg)
        call.cancel()


async def ask_all(
    links: Sequence[WorkerLink], request_id: str, cause: str, clock: Clock
) -> tuple[CancelOutcome, str] | None:
    """The first answer of a worker that knows the run, and that worker's name; None where none does."""

    async def through(link: WorkerLink) -> CancelOutcome:
        async with link.gate:
            return await ask(link, request_id, cause, clock)

    async def one(link: WorkerLink) -> tuple[CancelOutcome, str] | None:
        try:
            outcome = await within(clock, SILENCE_SECONDS, through(link))
        except (TimeoutError, Refusal, PassedOn):
            return None  # it says nothing, and the broker remembers the cancel
        return None if outcome is CancelOutcome.REMEMBERED else (outcome, link.name)

    tasks = [asyncio.create_task(one(link)) for link in links]
    try:
        for answered in asyncio.as_completed(tasks):
            if (answer := await answered) is not None:
                return answer
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _result(
    call: grpc.aio.UnaryUnaryCall[env_service_pb2.CancelRequest, env_service_pb2.CancelResponse],
) -> env_service_pb2.CancelResponse:
    return await call


def silent(request_id: str, worker: str, what: str) -> Refusal:
    """The worker that has the run does not answer."""
    return Refusal(
        "WORKER_SILENT",
        f"worker {worker}, which has run {short(request_id)}, {what}; repeat the Cancel until its window is "
        "over",
        worker=worker,
        request_id=short(request_id),
        limit=f"{SILENCE_SECONDS:g} s",
    )

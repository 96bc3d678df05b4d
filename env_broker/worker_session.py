"""The broker's own session at one worker: what it confirms there, on one stream after another."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

import grpc.aio
from envtrio.v1 import env_service_pb2

from env_broker.hello import PROTOCOL_GENERATION
from env_broker.link import Leg
from env_broker.route import ConfirmOutcome
from env_broker.status import short
from env_broker.tasks import background, first_of
from env_broker.worker_messages import UnreadableError, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from envtrio.v1.env_service_pb2 import ConfirmAnswer, SessionRequest
    from grpc.aio import StreamStreamCall

    from env_broker.clock import Clock
    from env_broker.link import WorkerLink
    from env_broker.session_names import SessionNames

    SessionCall = StreamStreamCall[SessionRequest, bytes]

log = logging.getLogger(__name__)

MAX_FRAME_IDS: Final = 1_024
"""Most confirmations, or answers, in one frame."""

_FIRST_DELAY_SECONDS: Final = 0.05
_LAST_DELAY_SECONDS: Final = 2.0

_FROM_WIRE: Final[Mapping[env_service_pb2.ConfirmOutcome.ValueType, ConfirmOutcome]] = {
    env_service_pb2.CONFIRM_OUTCOME_CONFIRMED: ConfirmOutcome.CONFIRMED,
    env_service_pb2.CONFIRM_OUTCOME_DISCARDED: ConfirmOutcome.DISCARDED,
    env_service_pb2.CONFIRM_OUTCOME_UNKNOWN: ConfirmOutcome.UNKNOWN,
}


class WorkerSession(Leg):
    """Asks one worker about replied runs, over a stream that is opened with the first and then stays.

    A stream that breaks is opened again with the next epoch, and what was not answered is asked again.
    There is no answer but the worker's.

    Args:
        names: what such sessions are called.
        heard: called with itself and each answer.
        lost: called when the worker is lost.
    """

    def __init__(
        self,
        link: WorkerLink,
        *,
        names: SessionNames,
        clock: Clock,
        heard: Callable[[WorkerSession, str, ConfirmOutcome], None],
        lost: Callable[[WorkerSession], None],
    ) -> None:
        self.link: Final = link
        self._names: Final = names
        self._clock: Final = clock
        self._heard: Final = heard
        self._lost: Final = lost
        self._waiting: dict[str, None] = {}
        self._unsent: dict[str, None] = {}
        self._wake: Final = asyncio.Event()
        self._closing = False
        self._task: Final = background(self._run(), f"session at {link.name}")
        link.legs.add(self)

    @property
    def waits(self) -> bool:
        """As in Leg."""
        return bool(self._waiting)

    def ask(self, request_id: str) -> None:
        """Confirm that run. Its answer comes to `heard`."""
        self._waiting[request_id] = self._unsent[request_id] = None
        self._wake.set()

    def forget(self, request_id: str) -> None:
        """Nobody waits for that answer any more. What was sent already may be answered all the same."""
        self._waiting.pop(request_id, None)
        self._unsent.pop(request_id, None)

    def worker_lost(self) -> None:
        """As in Leg."""
        self._task.cancel()
        self._lost(self)

    async def close(self, seconds: float) -> None:
        """Say goodbye, within that time."""
        self._closing = True
        self._wake.set()
        await asyncio.wait({self._task}, timeout=seconds)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.link.legs.discard(self)

    async def _run(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        while not self._closing:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            if await self._hold():
                delay = _FIRST_DELAY_SECONDS
            if self._closing:
                return
            await self._clock.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY_SECONDS)

    async def _hold(self) -> bool:
        """Hold one stream to its end. Whether the worker had taken the session up."""
        call, opened, reason = self.link.session(), False, "the worker ended it"
        try:
            opened = await self._open(call)
            if opened:
                self._unsent = dict(self._waiting)
                await first_of(self._send(call), self._receive(call))
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except UnreadableError as error:
            reason = str(error)
        except asyncio.InvalidStateError as error:  # what writing to a call that has ended raises
            reason = str(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            reason = "CANCELLED"  # it was not we who were cancelled
        finally:
            call.cancel()
        if not self._closing:
            log.warning(
                "worker=%s session stream ended, unanswered=%d: %s",
                self.link.name,
                len(self._waiting),
                reason,
            )
        return opened

    async def _open(self, call: SessionCall) -> bool:
        frame = env_service_pb2.SessionOpen(
            session_id=self._names.session_id(self.link.worker.instance),
            epoch=self._names.next_epoch(),
            protocol_generation=PROTOCOL_GENERATION,
        )
        await call.write(env_service_pb2.SessionRequest(open=frame))
        first = await call.read()
        return isinstance(first, bytes) and (await parsed(first)).HasField("opened")

    async def _send(self, call: SessionCall) -> None:
        """Send what is asked; what comes while a frame is being written goes with the next one."""
        while not self._closing:
            while batch := list(islice(self._unsent, MAX_FRAME_IDS)):
                for request_id in batch:
                    del self._unsent[request_id]
                frame = env_service_pb2.Confirm(request_ids=batch)
                await call.write(env_service_pb2.SessionRequest(confirm=frame))
            self._wake.clear()
            await self._wake.wait()
        goodbye = env_service_pb2.SessionGoodbye()
        await call.write(env_service_pb2.SessionRequest(goodbye=goodbye))
        await call.done_writing()
        await asyncio.Event().wait()  # the worker's end of the stream ends this

    async def _receive(self, call: SessionCall) -> None:
        while isinstance(data := await call.read(), bytes):
            message = await parsed(data)
            for frame in (message, *message.more):
                for answer in frame.confirm_answers.answers:
                    self._answered(answer)

    def _answered(self, answer: ConfirmAnswer) -> None:
        outcome = _FROM_WIRE.get(answer.outcome)
        if outcome is None:
            log.error(
                "worker=%s run=%s confirmation answered with %d, which says nothing; upgrade it",
                self.link.name,
                short(answer.request_id),
                answer.outcome,
            )
            return
        self.forget(answer.request_id)
        self._heard(self, answer.request_id, outcome)

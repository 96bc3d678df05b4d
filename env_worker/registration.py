"""A worker's place in a broker's pool: hello, heartbeats, and coming back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from envtrio.v1 import registry_service_pb2 as pb
from envtrio.v1 import registry_service_pb2_grpc

from env_worker.channel_options import CHANNEL_OPTIONS
from env_worker.loop_lag import LoopLag
from env_worker.reachability import Reachability
from env_worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from envtrio.v1.env_service_pb2 import EnvironmentDescription

    from env_worker.held_arrays import Held
    from env_worker.report import Room
    from env_worker.runner import Runner

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS: Final = 0.1
LAST_BACKOFF_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 3.0
"""For a connection. With the backoff it bounds how long a broker that is back waits for its workers, also
where packets were lost in silence: 5 s."""
ANSWER_SECONDS: Final = 10.0
"""For the broker's first frame."""
REPEAT_SECONDS: Final = 60.0
"""So often the log repeats why the worker is not registered, while that stays the same."""
HEARTBEATS_HELD: Final = 3
"""A lease of so many was a real one: after it the worker comes back at once, and says in the log why."""
GOODBYE_SECONDS: Final = 1.0
ROOM_SECONDS: Final = 0.1
"""So often it is looked whether there is room for training arrays: a broker, which gives no runs to a worker
without, should not hear of that with a heartbeat's delay."""

_HOPELESS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""What says the same next time."""

_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.RegisterRequest, pb.RegisterResponse]"


class RegistrationRefusedError(Exception):
    """The broker will not have this worker, now or later; the message says why."""


class Registration:
    """Keeps the worker registered: each connection is a new lease of the same instance.

    Args:
        broker: the broker's HOST:PORT.
        address: where the broker reaches this worker.
        environments: what is served.
        local_slot: what the broker that started this worker wants to hear; else empty.
        drain: called with the broker's reason when it wants the worker to stop.
        held: reads what the hook holds, for heartbeats.
        detail: says why the worker drains or what blocks it, for heartbeats.
        clock: that of the runner.
    """

    def __init__(
        self,
        broker: str,
        *,
        runner: Runner,
        instance: str,
        address: str,
        environments: Sequence[EnvironmentDescription],
        local_slot: str,
        drain: Callable[[str], None],
        held: Callable[[], Coroutine[None, None, Held]],
        detail: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._broker: Final = broker
        self._runner: Final = runner
        self._instance: Final = instance
        self._address: Final = address
        self._drain: Final = drain
        self._report: Final = Report(
            runner,
            instance=instance,
            address=address,
            environments=environments,
            local_slot=local_slot,
            held=held,
            detail=detail,
        )
        self._clock: Final = clock
        self._hurry: Final = asyncio.Event()
        self._closing: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._backoff = FIRST_BACKOFF_SECONDS
        self._registered = False
        self._reachability = Reachability(broker, address)
        self._told = ("", float("-inf"))
        """The reason that was logged last, and when."""

    def nudge(self) -> None:
        """Something changed that the broker should hear now, not with the next heartbeat."""
        self._hurry.set()

    def start(self, refused: Callable[[str], None]) -> None:
        """Begin. `refused` is called with the reason if the broker will not have this worker, or if there is
        a fault here: a worker that nobody would find again must not go on."""

        async def run() -> None:
            try:
                await self.run()
            except RegistrationRefusedError as error:
                refused(str(error))
            except Exception as error:
                logger.exception("broker=%s registration failed", self._broker)
                refused(
                    f"registration at broker {self._broker} failed by {type(error).__name__}; start the "
                    "worker again, and report it with its log"
                )

        self._task = asyncio.create_task(run())

    async def close(self) -> None:
        """End the lease in good order, so that the broker sees a worker that stopped and not one that was
        lost."""
        self._closing.set()
        self.nudge()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=GOODBYE_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        """Register, and register again whenever the lease is over, until closed. RegistrationRefusedError
        if the broker refuses in a way that would repeat itself."""
        while True:
            async with grpc.aio.insecure_channel(self._broker, options=CHANNEL_OPTIONS) as channel:
                reason = await self._lease(registry_service_pb2_grpc.RegistryServiceStub(channel).Register())
            if self._closing.is_set():
                return
            delay = random.uniform(0.5, 1.0) * self._backoff
            self._tell(reason)
            self._backoff = min(2 * self._backoff, LAST_BACKOFF_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._closing.wait()
                    return

    def _tell(self, reason: str) -> None:
        """Log why there is no lease: at once when that is new, and from time to time while it stays so."""
        level, now = logging.DEBUG, self._clock()
        if reason != self._told[0] or now - self._told[1] >= REPEAT_SECONDS:
            level, self._told = logging.WARNING, (reason, now)
        what = "the lease is over" if self._registered else "cannot register yet"
        logger.log(level, "broker=%s %s, and is tried again: %s", self._broker, what, reason)

    async def _lease(self, call: _Call) -> str:
        """Hold one lease; why it is over."""
        silent = f"no connection within {CONNECT_SECONDS:g} s"
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await call.write(pb.RegisterRequest(hello=self._report.hello()))
            silent = f"the broker has not answered the hello within {ANSWER_SECONDS:g} s"
            async with asyncio.timeout(ANSWER_SECONDS):
                frame = await call.read()
            silent = "the broker has been silent for longer than the lease"
            if not isinstance(frame, pb.RegisterResponse) or not frame.HasField("registered"):
                await self._raise_status(call)
                return "the broker ended the stream before it registered the worker"
            await self._hold(call, frame.registered)
        except grpc.aio.AioRpcError as error:
            if error.code() in _HOPELESS:
                raise RegistrationRefusedError(
                    f"broker {self._broker} refuses this worker: {error.code().name}: {error.details()}"
                ) from error
            return f"{error.code().name}: {error.details()}"
        except asyncio.InvalidStateError as error:  # what writing to a call that has ended raises
            await self._raise_status(call)
            return f"the stream ended: {error}"
        except TimeoutError:
            return silent
        finally:
            call.cancel()
        return "the broker ended the stream"

    async def _hold(self, call: _Call, registered: pb.Registered) -> None:
        if registered.given_up:
            self._runner.give_up(list(registered.given_up))
            ack = pb.GivenUpAck(request_ids=registered.given_up)
            await call.write(pb.RegisterRequest(given_up_ack=ack))
        logger.info(
            "broker=%s worker=%s lease=%s registered advertise=%s",
            self._broker, self._instance[:8], registered.lease[:8], self._address,
        )  # fmt: skip
        self._reachability = Reachability(self._broker, self._address)
        self._registered = True
        self._runner.registered()
        sent: dict[int, float] = {}
        beats = asyncio.create_task(self._beat(call, registered.heartbeat_seconds or 1.0, sent))
        try:
            while True:
                async with asyncio.timeout(registered.lease_seconds or None):
                    frame = await call.read()
                if not isinstance(frame, pb.RegisterResponse):
                    await self._raise_status(call)
                    return
                self._hear(frame, sent)
        finally:
            beats.cancel()
            # Whatever it met, the reader has met too, and says it better.
            await asyncio.gather(beats, return_exceptions=True)

    def _hear(self, frame: pb.RegisterResponse, sent: dict[int, float]) -> None:
        match frame.WhichOneof("frame"):
            case "heartbeat_ack":
                self._reachability.heard(frame.heartbeat_ack.unreachable_because)
                if (sent_at := sent.pop(frame.heartbeat_ack.seq, None)) is not None:
                    self._runner.heartbeat_acknowledged(sent_at)
                if frame.heartbeat_ack.seq == HEARTBEATS_HELD:
                    self._backoff, self._told = FIRST_BACKOFF_SECONDS, ("", self._told[1])
            case "drain":
                self._drain(frame.drain.cause)
            case unknown:
                logger.warning("broker=%s sent the frame %s, which is ignored", self._broker, unknown)

    async def _beat(self, call: _Call, seconds: float, sent: dict[int, float]) -> None:
        lag = LoopLag()
        try:
            seq = 0
            while True:
                closing = self._closing.is_set()
                seq += 1
                sent[seq] = self._clock()
                beat, room = await self._report.heartbeat(seq, lag)
                await call.write(pb.RegisterRequest(heartbeat=beat))
                if closing:
                    break  # the last one says that it drains: else its end would look like a broken stream
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._news(room)
                self._hurry.clear()
            await call.done_writing()
        finally:
            lag.close()

    async def _news(self, told: Room) -> None:
        """Return when the broker should hear something now: what `nudge` was called for, or that it is no
        longer `told` the truth of the room for arrays."""
        while not self._hurry.is_set() and self._report.room == told:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROOM_SECONDS):
                    await self._hurry.wait()

    async def _raise_status(self, call: _Call) -> None:
        if (code := await call.code()) is not grpc.StatusCode.OK:
            metadata: Any = await call.trailing_metadata()
            raise grpc.aio.AioRpcError(code, await call.initial_metadata(), metadata, await call.details())

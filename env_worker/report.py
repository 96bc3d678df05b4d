"""What a worker tells its broker of itself: the hello of each lease, and its heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from envtrio.v1 import registry_service_pb2 as pb

from env_worker.request import PROTOCOL_GENERATION
from env_worker.servicer import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from envtrio.v1.env_service_pb2 import EnvironmentDescription

    from env_worker.held_arrays import Held
    from env_worker.loop_lag import LoopLag
    from env_worker.runner import Runner

MAX_DETAIL_BYTES: Final = 1024


class Room(NamedTuple):
    """Whether runs find room for their training arrays. One that differs from what was told is news."""

    full: bool
    refused: int
    """Runs that found none although there is some by now: whoever sent them thinks that there is not."""


class Report:
    """Speaks of one worker.

    Args:
        address: where the broker reaches it.
        environments: what is served.
        local_slot: what the broker that started it wants to hear; else empty.
        held: reads what the hook holds.
        detail: says why it drains or what blocks it.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        instance: str,
        address: str,
        environments: Sequence[EnvironmentDescription],
        local_slot: str,
        held: Callable[[], Coroutine[None, None, Held]],
        detail: Callable[[], str],
    ) -> None:
        self._runner: Final = runner
        self._instance: Final = instance
        self._address: Final = address
        self._environments: Final = environments
        self._local_slot: Final = local_slot
        self._held: Final = held
        self._detail: Final = detail

    @property
    def room(self) -> Room:
        """What is known now of the room for training arrays."""
        full = bool(self._runner.no_array_room)
        return Room(full, 0 if full else self._runner.without_array_room)

    def hello(self) -> pb.WorkerHello:
        """Who it is, what it serves, and what it has."""
        table = self._runner.table
        held = [
            pb.HeldRun(
                request_id=entry.request_id,
                session_id=entry.session_id,
                state=pb.HELD_RUN_STATE_REPLIED if entry.replied else pb.HELD_RUN_STATE_RUNNING,
            )
            for entry in table.entries()
            if not entry.settled
        ]
        return pb.WorkerHello(
            protocol_generation=PROTOCOL_GENERATION,
            version=VERSION,
            instance=self._instance,
            address=self._address,
            environments=self._environments,
            max_concurrent_runs=self._runner.slots.capacity,
            late_cancel_seconds=table.late_cancel_seconds,
            held_runs=held,
            local_slot=self._local_slot,
        )

    async def heartbeat(self, seq: int, lag: LoopLag) -> tuple[pb.WorkerHeartbeat, Room]:
        """Its load and its state now, and the room of which that tells."""
        slots, table = self._runner.slots, self._runner.table
        beat = pb.WorkerHeartbeat(
            seq=seq,
            running=slots.held + slots.waiting,
            open_windows=table.open_windows,
            draining=self._runner.draining,
            loop_lag_millis=lag.take_millis(),
        )
        # After the rest: what was kept for a run that the rest counts no more is among it.
        held = await self._held()
        beat.held_arrays, beat.held_array_bytes = held.episodes, held.bytes
        # At the very last: a run that was refused before this leaves must not find the worker asked again.
        beat.detail = self._detail().encode("utf-8", "replace")[:MAX_DETAIL_BYTES].decode("utf-8", "ignore")
        room = self.room
        beat.array_room_full = room.full
        return beat, room

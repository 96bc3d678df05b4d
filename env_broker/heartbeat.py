"""What a worker says of itself with each heartbeat, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from env_broker.hello import check_environments
from env_broker.pool import Load
from env_broker.status import cut

if TYPE_CHECKING:
    from envtrio.v1.env_service_pb2 import EnvironmentDescription
    from envtrio.v1.registry_service_pb2 import WorkerHeartbeat

MAX_DETAIL_BYTES: Final = 1024


class Heartbeat(NamedTuple):
    """One of them."""

    seq: int
    load: Load
    environments: tuple[EnvironmentDescription, ...]
    """What is served now, if that has changed; else empty."""
    says: str
    """For people; may be empty."""
    draining: bool
    full: bool
    """Whether there is no room for training arrays. One of an older version never says so."""


def check_heartbeat(beat: WorkerHeartbeat) -> Heartbeat:
    """The heartbeat as a record. Raises Refusal (INVALID_REQUEST) as `check_environments` does."""
    return Heartbeat(
        seq=beat.seq,
        load=Load(
            beat.running, beat.open_windows, beat.held_arrays, beat.held_array_bytes, beat.loop_lag_millis
        ),
        environments=check_environments(beat.environments),
        says=cut(beat.detail, MAX_DETAIL_BYTES),
        draining=beat.draining,
        full=beat.array_room_full,
    )

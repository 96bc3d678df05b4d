"""What a worker says of itself when it registers, checked."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from envtrio.v1 import registry_service_pb2

from env_broker.route import InvalidRequestIdError
from env_broker.route import key as check_request_id
from env_broker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from envtrio.v1.env_service_pb2 import EnvironmentDescription
    from envtrio.v1.registry_service_pb2 import HeldRun, WorkerHello

PROTOCOL_GENERATION: Final = 1
MAX_SLOTS: Final = 65_536
MAX_WINDOW_SECONDS: Final = 86_400.0
MAX_ENVIRONMENTS: Final = 4_096
MAX_SLOT_CHARACTERS: Final = 64

_INSTANCE: Final = re.compile(r"[0-9a-f]{32}")
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(\d{1,5})")
_RUN_STATES: Final = (
    registry_service_pb2.HELD_RUN_STATE_RUNNING,
    registry_service_pb2.HELD_RUN_STATE_REPLIED,
)


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker that may have a place in the pool."""

    instance: str
    address: str
    environments: tuple[EnvironmentDescription, ...]
    slots: int
    late_cancel_seconds: float
    held_runs: tuple[HeldRun, ...]
    local_slot: str
    """What it was started with, if it is one of the broker's own; no more than a claim."""


def check_generation(theirs: int) -> None:
    """Raises Refusal (PROTOCOL_GENERATION) where the peer speaks another one."""
    if theirs != PROTOCOL_GENERATION:
        raise Refusal(
            "PROTOCOL_GENERATION",
            f"protocol_generation is {theirs}, here it is {PROTOCOL_GENERATION}; upgrade the older peer",
            ours=PROTOCOL_GENERATION,
            theirs=theirs,
        )


def check_hello(hello: WorkerHello) -> Hello:
    """The hello as a record.

    Raises:
        Refusal: PROTOCOL_GENERATION, or INVALID_REQUEST naming the field.
    """
    check_generation(hello.protocol_generation)
    if _INSTANCE.fullmatch(hello.instance) is None:
        raise _invalid("instance", hello.instance[:64], "32 lower-case hexadecimal digits")
    address = _ADDRESS.fullmatch(hello.address)
    if address is None or not 0 < int(address[2]) < 65_536:
        raise _invalid("address", hello.address[:256], "HOST:PORT with a port of 1 to 65535")
    if not 1 <= hello.max_concurrent_runs <= MAX_SLOTS:
        raise _invalid("max_concurrent_runs", hello.max_concurrent_runs, f"1 to {MAX_SLOTS}")
    window = hello.late_cancel_seconds
    if not math.isfinite(window) or not 0 <= window <= MAX_WINDOW_SECONDS:
        raise _invalid("late_cancel_seconds", window, f"0 to {MAX_WINDOW_SECONDS:g}")
    if len(hello.local_slot) > MAX_SLOT_CHARACTERS:
        raise _invalid(
            "local_slot", hello.local_slot[:MAX_SLOT_CHARACTERS], f"at most {MAX_SLOT_CHARACTERS} characters"
        )
    for run in hello.held_runs:
        try:
            check_request_id(run.request_id)
        except InvalidRequestIdError as error:
            raise _invalid("held_runs.request_id", run.request_id[:8], str(error)) from None
        if run.state not in _RUN_STATES:
            raise _invalid("held_runs.state", run.state, "HELD_RUN_STATE_RUNNING or HELD_RUN_STATE_REPLIED")
    return Hello(
        instance=hello.instance,
        address=hello.address,
        environments=check_environments(hello.environments),
        slots=hello.max_concurrent_runs,
        late_cancel_seconds=window,
        held_runs=tuple(hello.held_runs),
        local_slot=hello.local_slot,
    )


def check_environments(environments: Iterable[EnvironmentDescription]) -> tuple[EnvironmentDescription, ...]:
    """The environments, copied. Raises Refusal (INVALID_REQUEST) for empty or repeated names, or too many."""
    copied = tuple(environments)
    names = [environment.name for environment in copied]
    if len(names) > MAX_ENVIRONMENTS:
        raise _invalid("environments", f"{len(names)} of them", f"at most {MAX_ENVIRONMENTS}")
    seen = set[str]()
    for name in names:
        if not name:
            raise _invalid("environments.name", name, "a name")
        if name in seen:
            raise _invalid("environments.name", name[:128], "named once")
        seen.add(name)
    return copied


def _invalid(field: str, value: object, wanted: str) -> Refusal:
    return Refusal(
        "INVALID_REQUEST",
        f"hello: {field} is {value!r}, it must be {wanted}; start the worker with a right one",
        field=field,
        value=value,
    )

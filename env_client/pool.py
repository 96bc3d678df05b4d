"""A broker's view of its pool: how to get it, and what it says in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
from envtrio.v1 import pool_service_pb2
from envtrio.v1.pool_service_pb2 import WatchPoolRequest, WatchPoolResponse, WorkerState

from env_client.errors import UnavailableError
from env_client.request import PROTOCOL_GENERATION
from env_client.tally import format_bytes

if TYPE_CHECKING:
    from envtrio.v1.pool_service_pb2 import WorkerView

WATCH_METHOD: Final = (
    f"/{pool_service_pb2.DESCRIPTOR.services_by_name['PoolService'].full_name}/"
    f"{pool_service_pb2.DESCRIPTOR.services_by_name['PoolService'].methods_by_name['WatchPool'].name}"
)
NOT_REACHED: Final = "not reached"
"""In place of a server's health."""
COLUMNS: Final = ("worker", "slot", "address", "state", "runs", "windows", "arrays", "since", "environments")

_ASK_SECONDS: Final = 2.0
"""How long the one view may take that explains why a server is not ready."""
_SHOWN_WORKERS: Final = 8
_MAX_DETAIL_CHARACTERS: Final = 1_000


class Row(NamedTuple):
    """One worker: its name, a cell for each of COLUMNS, and why it is in its state."""

    name: str
    cells: tuple[str, ...]
    detail: str


def watch(channel: Any, interval_millis: int = 0, timeout: float | None = None) -> Any:
    """Start WatchPool on a channel of either kind. The caller cancels the call."""
    method = channel.unary_stream(
        WATCH_METHOD,
        request_serializer=WatchPoolRequest.SerializeToString,
        response_deserializer=WatchPoolResponse.FromString,
    )
    request = WatchPoolRequest(protocol_generation=PROTOCOL_GENERATION, min_interval_millis=interval_millis)
    return method(request, timeout=timeout)


async def why_not_ready(channel: grpc.aio.Channel) -> str:
    """What the pool says of workers that take no runs, or why nothing answers there. Empty where there is no
    view, as of a lone worker."""
    call = watch(channel, timeout=_ASK_SECONDS)
    try:
        view = await call.read()
    except grpc.RpcError as error:
        return _unreachable(error)
    finally:
        call.cancel()
    return readiness(view) if isinstance(view, WatchPoolResponse) else ""


def why_not_ready_sync(channel: grpc.Channel) -> str:
    """As `why_not_ready`."""
    call = watch(channel, timeout=_ASK_SECONDS)
    try:
        return readiness(next(call))
    except grpc.RpcError as error:
        return _unreachable(error)
    except StopIteration:
        return ""
    finally:
        call.cancel()


def not_ready(target: str, timeout: float | None, last: str, why: str) -> UnavailableError:
    """That a server was not SERVING within `timeout` seconds; `why` may be empty."""
    said = f" ({why})" if why else ""
    next_step = (
        "see that a broker or worker is up there, or correct the address"
        if last == NOT_REACHED
        else "see the server's log"
    )
    return UnavailableError(
        f"{target} was not SERVING within {timeout} s, at last: {last}{said}; {next_step}"
    )


def readiness(view: WatchPoolResponse) -> str:
    """Whether the broker stops, its workers by state, and why those that take no runs do not; in a line."""
    waiting = [worker for worker in view.workers if worker.state != WorkerState.WORKER_STATE_READY]
    parts = [f"{name(worker)} is {state(worker)}{_because(worker)}" for worker in waiting[:_SHOWN_WORKERS]]
    if more := len(waiting) - len(parts):
        parts.append(f"and {more} more")
    ready = len(view.workers) - len(waiting)
    count = f"{ready} of {len(view.workers)} workers of the pool are ready"
    return "; ".join([*_stopping(view), count, *parts])


def headline(view: WatchPoolResponse) -> str:
    """Whether the broker stops, workers by state, slots, queue."""
    states: dict[str, int] = {}
    for worker in view.workers:
        states[state(worker)] = states.get(state(worker), 0) + 1
    by_state = ", ".join(f"{count} {name}" for name, count in states.items()) or "none"
    slots = sum(worker.max_concurrent_runs for worker in view.workers if worker.state in _SERVING)
    running = sum(worker.running for worker in view.workers)
    least, most = view.min_local_workers, view.max_local_workers
    elastic = f" ({least} to {most} local ones)" if least < most else ""
    said = (
        f"workers: {by_state}{elastic}; {running} of {slots} slots taken; {view.queued_runs} of "
        f"{view.max_queued_runs} runs queued"
    )
    return "; ".join([*_stopping(view), said])


def totals(view: WatchPoolResponse) -> str:
    """What has become of the runs since the broker started."""
    counted = view.counters
    ended = {outcome: counted[outcome] for outcome in ("replied", "cancelled", "failed", "refused")}
    carried = counted["runs"] - sum(ended.values())
    said = ", ".join(f"{count} {outcome}" for outcome, count in ended.items())
    lost = counted["workers_lost"]
    return (
        f"since its start: {counted['runs']} runs: {said}, {carried} carried now; "
        f"{lost} worker{'' if lost == 1 else 's'} lost"
    )


def rows(view: WatchPoolResponse) -> list[Row]:
    """The workers, one row each."""
    return [
        Row(
            name(worker),
            (
                worker.instance[:8] or "-",
                worker.local_slot or "-",
                worker.address or "-",
                state(worker),
                f"{worker.running}/{worker.max_concurrent_runs}" if worker.max_concurrent_runs else "-",
                str(worker.open_windows),
                format_bytes(worker.held_array_bytes),
                _since(view, worker),
                ", ".join(worker.environments) or "-",
            ),
            printable(worker.detail),
        )
        for worker in view.workers
    ]


def name(worker: WorkerView) -> str:
    """A worker as messages name it."""
    if worker.instance:
        return f"worker {worker.instance[:8]}" + (f" at {worker.address}" if worker.address else "")
    return f"local worker {worker.local_slot}"


def state(worker: WorkerView) -> str:
    """Its state's name without the prefix; the number of one that a later version added."""
    try:
        return WorkerState.Name(worker.state).removeprefix("WORKER_STATE_")
    except ValueError:
        return f"state {worker.state}"


def printable(text: str) -> str:
    """Text without what would move a terminal's cursor: it may hold a worker's output."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


_SERVING: Final = (WorkerState.WORKER_STATE_READY, WorkerState.WORKER_STATE_DRAINING)


def _stopping(view: WatchPoolResponse) -> list[str]:
    return [printable(view.stopping)[:_MAX_DETAIL_CHARACTERS]] if view.stopping else []


def _unreachable(error: grpc.RpcError) -> str:
    details = error.details() if error.code() is grpc.StatusCode.UNAVAILABLE else None
    return printable(details or "")[:_MAX_DETAIL_CHARACTERS]


def _because(worker: WorkerView) -> str:
    detail = printable(worker.detail)[:_MAX_DETAIL_CHARACTERS]
    return f" ({detail})" if detail else ""


def _since(view: WatchPoolResponse, worker: WorkerView) -> str:
    """How long it has been registered."""
    if not worker.HasField("registered_at"):
        return "-"
    seconds = max(0, view.taken_at.seconds - worker.registered_at.seconds)
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"

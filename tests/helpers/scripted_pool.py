"""A real server on port 0 that serves PoolService and Health from a script, for tests of the client."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import grpc
from envtrio.v1 import pool_service_pb2 as pb
from envtrio.v1 import pool_service_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.helpers.scripted_end import End

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_PATIENCE_SECONDS: Final = 20.0


class ScriptedPool(pool_service_pb2_grpc.PoolServiceServicer):
    """Each WatchPool call plays the next of `calls`, then says no more; a context manager. NOT_SERVING."""

    def __init__(self, *calls: tuple[pb.WatchPoolResponse | End, ...], port: int = 0) -> None:
        self.requests: list[pb.WatchPoolRequest] = []
        self._calls = deque(calls)
        self._threads = ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads, options=(("grpc.so_reuseport", 0),))
        pool_service_pb2_grpc.add_PoolServiceServicer_to_server(self, self._server)
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def __enter__(self) -> ScriptedPool:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait(_PATIENCE_SECONDS)
        self._threads.shutdown()
        assert error is not None or not self._calls, f"{len(self._calls)} calls did not come"

    def WatchPool(
        self, request: pb.WatchPoolRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchPoolResponse]:
        """Handler of WatchPool."""
        self.requests.append(request)
        gone = threading.Event()
        if not context.add_callback(gone.set):
            gone.set()
        for line in self._calls.popleft() if self._calls else ():
            if isinstance(line, End):
                line.abort(context)
            else:
                yield line
        gone.wait(_PATIENCE_SECONDS)


def a_view() -> pb.WatchPoolResponse:
    """A pool with a worker in each state, one of which printed what a terminal would obey."""
    view = pb.WatchPoolResponse(queued_runs=3, max_queued_runs=1024)
    view.taken_at.FromSeconds(1_700_000_100)
    busy = view.workers.add(
        instance="a" * 32, address="127.0.0.1:7001", state=pb.WORKER_STATE_READY, running=3,
        environments=["reasoning-gym", "synthetic"], max_concurrent_runs=8, open_windows=2,
        held_array_bytes=3 * 2**20,
    )  # fmt: skip
    busy.registered_at.FromSeconds(1_700_000_000)
    draining = view.workers.add(
        instance="b" * 32, address="host:7002", state=pb.WORKER_STATE_DRAINING, max_concurrent_runs=8
    )
    draining.registered_at.FromSeconds(1_700_000_100 - 7_500)
    view.workers.add(
        instance="c" * 32, address="host:1", state=pb.WORKER_STATE_LOADING, max_concurrent_runs=4,
        detail="the broker cannot reach it: refused",
    )  # fmt: skip
    view.workers.add(
        state=pb.WORKER_STATE_STARTING, local_slot="1",
        detail="it waits to be started again; worker 1 exited with code 2; its last lines: \x1b[2J[bold]boom",
    )  # fmt: skip
    view.workers.add(
        instance="d" * 32, address="host:7004", state=pb.WORKER_STATE_LOST, local_slot="0",
        detail="it was lost: its stream broke",
    )  # fmt: skip
    view.counters.update(
        {"runs": 20, "replied": 11, "cancelled": 2, "failed": 1, "refused": 3, "workers_lost": 1}
    )
    return view

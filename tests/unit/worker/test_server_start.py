"""A worker that cannot start leaves nothing behind that is served or held."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from env_worker import ArrayKeeper
from env_worker import server as server_module
from env_worker.arrays.limits import ArrayLimits
from env_worker.config import WorkerSettings
from env_worker.hook import HookLoadError
from env_worker.listening import ServerStartError
from env_worker.runner import Runner
from env_worker.server import WorkerServer
from env_worker.stuck import StuckWatch
from tests.helpers.array_episodes import HOME

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def taken() -> Iterator[str]:
    """An address that somebody else serves on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield f"127.0.0.1:{other.getsockname()[1]}"


def answers(address: str) -> bool:
    """Whether anybody takes connections there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return not probe.connect_ex((host, int(port)))


def own_tasks() -> set[str]:
    """Tasks beside the test's own and gRPC's."""
    return {task.get_name() for task in asyncio.all_tasks()} - {"Task-1"}


def elsewhere() -> ArrayKeeper:
    """A keeper that belongs to another worker."""
    keeper = ArrayKeeper(memory_bytes=2**20)
    keeper.array_store.attach(HOME, ArrayLimits(0))
    return keeper


async def test_a_hook_that_cannot_be_served() -> None:
    threads = threading.active_count()
    settings = WorkerSettings(environments=("synthetic",), metrics="127.0.0.1:0")
    server = WorkerServer(settings, hook=elsewhere())
    with pytest.raises(HookLoadError, match="belong to worker a1a1a1a1"):
        await server.start()
    assert server.address
    assert server.metrics_address
    assert not answers(server.address)
    assert not answers(server.metrics_address)
    assert "array-leases" not in own_tasks()
    assert [t.name for t in threading.enumerate() if t.name.startswith("array")] == []
    assert threading.active_count() <= threads + 1  # gRPC's own


async def test_an_address_that_references_have_no_room_for() -> None:
    settings = WorkerSettings(environments=("synthetic",), advertise=f"{'x' * 700}:1", broker="127.0.0.1:1")
    server = WorkerServer(settings, hook=ArrayKeeper(memory_bytes=2**20))
    with pytest.raises(HookLoadError, match=r"takes 702 bytes, .* room for 259; .*--advertise"):
        await server.start()
    assert not answers(server.address)


async def test_metrics_at_an_address_that_is_taken(taken: str) -> None:
    server = WorkerServer(WorkerSettings(environments=("synthetic",), metrics=taken))
    with pytest.raises(ServerStartError, match="--metrics"):
        await server.start()
    assert not answers(server.address)


@pytest.mark.parametrize("late", ["_set_health", "_keep_health"], ids=["before it serves", "afterwards"])
async def test_what_fails_late_undoes_all_before_it(late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watching: set[StuckWatch] = set()

    class Watch(StuckWatch):
        """One of an environments' loop that has ended would warn for ever."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            watching.add(self)

        def close(self) -> None:
            super().close()
            watching.remove(self)

    monkeypatch.setattr(server_module, "StuckWatch", Watch)
    closed: list[Runner] = []
    close = Runner.close

    async def noted(runner: Runner) -> None:
        closed.append(runner)
        await close(runner)

    def refuse(server: WorkerServer, health: object) -> None:
        raise RuntimeError("no health")

    monkeypatch.setattr(Runner, "close", noted)
    monkeypatch.setattr(WorkerServer, late, refuse)
    keeper = ArrayKeeper(memory_bytes=2**20)
    server = WorkerServer(WorkerSettings(environments=("synthetic",)), hook=keeper)
    with pytest.raises(RuntimeError, match="no health"):
        await server.start()
    assert closed == [server.runner]
    assert not watching
    assert not answers(server.address)
    assert "array-leases" not in own_tasks()

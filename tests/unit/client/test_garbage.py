"""A run's memory goes when the run does: nothing of it waits for the cyclic garbage collector.

A run that failed may hold a large part of an episode, and a collection is rare where little is allocated.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING

import grpc
import pytest

from env_client import EnvClient, EnvError, SyncEnvClient
from tests.helpers.deltas import episode_stream, growth, opening
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, ScriptedService, Send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.scripted_service import Step

RUNS: dict[str, tuple[tuple[Step, ...], float | None]] = {
    "delivered": (tuple(map(Send, episode_stream())), None),
    "refused": ((End(grpc.StatusCode.INVALID_ARGUMENT, "no", "INVALID_TASK"),), None),
    "lost": ((Send(opening()), End(grpc.StatusCode.UNAVAILABLE, "gone", "WORKER_LOST")), None),
    "broken": ((Send(opening()), Send(growth(2)), Hang()), None),
    "unfinished": ((Send(opening()),), None),
    "expired": ((Send(opening()), Hang()), 0.05),
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Keeps the collector from hiding what it would have to free."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("steps", "timeout"), RUNS.values(), ids=RUNS)
async def test_a_run_is_gone_with_its_last_user(
    service: ScriptedService, steps: tuple[Step, ...], timeout: float | None
) -> None:
    gone = asyncio.Event()

    async def run(client: EnvClient) -> None:
        stream = client.stream({})
        weakref.finalize(stream, gone.set)
        with contextlib.suppress(EnvError):
            async with stream:
                await stream.result()

    service.on_run(*steps, optional=timeout is not None)  # it may be over before it has left
    async with EnvClient(service.address, timeout=timeout) as client:
        await run(client)
        async with asyncio.timeout(5):  # gRPC may hold the call for a moment.
            await gone.wait()


@pytest.mark.parametrize(("steps", "timeout"), RUNS.values(), ids=RUNS)
def test_a_synchronous_run_is_gone_with_its_last_user(
    service: ScriptedService, steps: tuple[Step, ...], timeout: float | None
) -> None:
    def run(client: SyncEnvClient) -> weakref.ref[object]:
        stream = client.stream({})
        with contextlib.suppress(EnvError), stream:
            stream.result()
        return weakref.ref(stream)

    service.on_run(*steps, optional=timeout is not None)  # it may be over before it has left
    with SyncEnvClient(service.address, timeout=timeout) as client:
        assert run(client)() is None

"""A whole worker in the test's process whose hook keeps training arrays."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from env_worker.config import WorkerSettings
from env_worker.server import WorkerServer
from tests.helpers.array_service import NARROW, ArrayCalls
from tests.helpers.history import History
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_worker.hook import EpisodeHook
    from tests.helpers.array_service import Reference
    from tests.helpers.stub_client import Outcome


class ArrayWorker(NamedTuple):
    """The worker, which serves "synthetic", calls of its TrainingArrayService, and a client of its runs."""

    server: WorkerServer
    calls: ArrayCalls
    client: StubClient


@asynccontextmanager
async def array_worker(hook: EpisodeHook | None, **settings: Any) -> AsyncIterator[ArrayWorker]:
    """Without a `hook` it is the one of `set_episode_hook`."""
    server = WorkerServer(WorkerSettings(environments=("synthetic",), **settings), hook=hook)
    await server.start()
    try:
        async with (
            StubClient(server.address, History()) as client,
            grpc.aio.insecure_channel(server.address, options=NARROW) as channel,
        ):
            yield ArrayWorker(server, ArrayCalls(channel), client)
    finally:
        await server.stop(hurry=True)


def references(outcome: Outcome) -> list[Reference]:
    """Those that an episode brought."""
    return [
        reference
        for trace in outcome.episode.traces
        for reference in json.loads(trace.info_json["training_arrays"])
    ]

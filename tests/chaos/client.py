"""A client process that runs episodes until its input ends.

    python -m tests.chaos.client KIND ADDRESS --seed S --number K

Kinds are "async", "sync", "bare" and "bare-lane", as in tests.helpers.storm_client, whose rides they take.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from envtrio.v1.env_service_pb2 import CancelRequest
from envtrio.v1.env_service_pb2_grpc import EnvServiceStub

from env_client import EnvClient, SyncEnvClient
from env_client.courier import CancelCourier
from tests.chaos.plan import WINDOW_SECONDS
from tests.helpers.history import Passed, Record
from tests.helpers.history_pipe import HistoryWriter
from tests.helpers.recorded_cancels import open_recorded_channel, outcome_of
from tests.helpers.recorded_client import RecordedSession
from tests.helpers.recorded_lane import record_lane
from tests.helpers.storm_client import AsyncRider, Ride, StubRider, SyncRider, rides, transport_of
from tests.helpers.stub_client import GENERATION, StubClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.helpers.history import History

BATCH = 1_000
PAUSE_SECONDS = 0.25
_FINAL = frozenset({"ABORTED", "DISCARDED", "TOO_LATE", "ABORTED WORKER_LOST"})


class QuietWriter(HistoryWriter):
    """Passes no messages on: clients check what they assemble."""

    def add(self, record: Record) -> None:
        if not isinstance(record, Passed):
            super().add(record)


class StubbornStub(StubClient):
    """Repeats a cancel, as the contract wants it of a bare caller, until it is settled or the window over."""

    async def cancel(self, run: str, **fields: Any) -> str:
        loop = asyncio.get_running_loop()
        until = loop.time() + WINDOW_SECONDS
        while True:
            outcome = await self.cancel_fully(run, **fields)
            if outcome in _FINAL or loop.time() >= until:
                return outcome
            await asyncio.sleep(PAUSE_SECONDS)


class StubbornSyncRider(SyncRider):
    """The same for cancels of the synchronous client, whose own `cancel` does not say that a worker is lost.

    Args:
        stub: on a recorded channel.
    """

    def __init__(self, client: SyncEnvClient, history: History, stub: Any) -> None:
        super().__init__(client, history)
        self._stub = stub

    def _cancel(self, run: str) -> None:
        request = CancelRequest(request_id=run, protocol_generation=GENERATION)
        until = time.monotonic() + WINDOW_SECONDS
        while True:
            answer = self._stub.Cancel.future(request, timeout=20.0)
            if outcome_of(answer) in _FINAL or time.monotonic() >= until:
                return
            time.sleep(PAUSE_SECONDS)


async def ride_all(
    ride: Callable[[Ride], Awaitable[None]], plans: Iterator[Ride], over: asyncio.Event, lanes: int
) -> None:
    """Ride one after another in so many lanes, with a pause where the pool is away, until it is over."""

    async def lane() -> None:
        for plan in plans:
            if over.is_set():
                return
            began = asyncio.get_running_loop().time()
            await ride(plan)
            if asyncio.get_running_loop().time() - began < 0.02:
                await asyncio.sleep(PAUSE_SECONDS)  # refused at once

    async with asyncio.TaskGroup() as group:
        for _ in range(lanes):
            group.create_task(lane())


def endless(kind: str, number: int, seed: int) -> Iterator[Ride]:
    """Plans without an end."""
    batch = 0
    while True:
        yield from rides(kind, number, seed + 10_007 * batch, BATCH)
        batch += 1


async def end_of_input() -> None:
    """Wait until whoever started this process wants it to leave."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    await reader.read()


async def _main(arguments: argparse.Namespace) -> None:
    kind, address, lanes = arguments.kind, arguments.address, arguments.lanes
    plans = endless(kind, arguments.number, arguments.seed)
    history = QuietWriter()
    over = asyncio.Event()

    async def watch() -> None:
        await end_of_input()
        over.set()

    watching = asyncio.create_task(watch())
    courier = CancelCourier(functools.partial(open_recorded_channel, address, history))
    async with StubbornStub(address, history, transport_of(kind)) as stub:
        print("ready", flush=True)
        if kind == "async":
            session = RecordedSession(address, history)
            async with EnvClient(address, env="synthetic", session=session, courier=courier) as client:
                record_lane(client, history)
                await ride_all(AsyncRider(client, stub, history).ride, plans, over, lanes)
        elif kind == "sync":
            session = RecordedSession(address, history)
            with (
                SyncEnvClient(address, env="synthetic", session=session, courier=courier) as plain,
                ThreadPoolExecutor(lanes) as threads,
            ):
                cancels: Any = EnvServiceStub(open_recorded_channel(address, history))
                rider = StubbornSyncRider(plain, history, cancels)
                loop = asyncio.get_running_loop()
                await ride_all(
                    lambda plan: loop.run_in_executor(threads, rider.ride, plan), plans, over, lanes
                )
        else:
            await ride_all(StubRider(stub, None).ride, plans, over, lanes)
    await watching


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A client process for chaos.")
    parser.add_argument("kind", choices=("async", "sync", "bare", "bare-lane"))
    parser.add_argument("address")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--lanes", type=int, default=6)
    asyncio.run(_main(parser.parse_args()))

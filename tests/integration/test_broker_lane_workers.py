"""Real workers behind a broker's lane: what comes of many runs in one stream, and when the process fails."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict

from env_broker.config import BrokerSettings
from env_broker.server import BrokerServer
from env_broker.worker_lane import WorkerLane
from tests.helpers.history import History
from tests.helpers.killable import fixed_port
from tests.helpers.pools import serving
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.helpers.stub_client import Outcome

QUICK = ("--drain-seconds", "0.2", "--linger-seconds", "0.2")
SLOW = {"turns": 3, "turn_seconds": 60}
RUNS = 24
BOUND_SECONDS = 5.0
TIMES_AND_NAMES = {
    "episodeId",
    "traceId",
    "id",
    "startedAt",
    "finishedUnixNanos",
    "createdUnixNanos",
    "duration",
}
LOST = {("UNAVAILABLE", "WORKER_LOST")}


class Pool:
    """A broker in this process, with one worker of its own, and a client."""

    def __init__(self, broker: BrokerServer, client: StubClient) -> None:
        self.broker = broker
        self.client = client

    @property
    def lane(self) -> WorkerLane:
        [link] = self.broker._links.values()
        return link.lane

    @property
    def carried(self) -> int:
        """Runs that the worker has by the lane."""
        return 0 if self.lane._table is None else len(self.lane._table)

    @property
    def pid(self) -> int:
        [pid] = self.broker.supervisor.pids
        return pid

    async def started(self) -> list[asyncio.Task[Outcome]]:
        """Many runs of one stream that have begun, and last."""
        await self.client.until_serving()
        runs = [self.client.start(SLOW) for _ in range(RUNS)]
        for run in runs:
            await run.next()
        assert self.carried == RUNS
        return [asyncio.create_task(run.finish()) for run in runs]


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[Pool]:
    settings = BrokerSettings(
        workers=1,
        environments=("synthetic",),
        max_concurrent=64,
        heartbeat_seconds=0.2,
        lease_seconds=1.0,
        drain_seconds=0.2,
        linger_seconds=0.2,
    )
    async with BrokerServer(settings) as broker, StubClient(broker.address, History()) as client:
        await client.until_serving()
        yield Pool(broker, client)


def plain(value: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in TIMES_AND_NAMES}
    return [plain(item) for item in value] if isinstance(value, list) else value


async def codes(runs: list[asyncio.Task[Outcome]]) -> set[tuple[str, str]]:
    async with asyncio.timeout(BOUND_SECONDS):
        return {(ended.code, ended.reason) for ended in [await run for run in runs]}


async def test_300_runs_of_one_stream_are_what_they_are_by_themselves(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = [
        {"seed": seed, "turns": 1 + seed % 5, "tokens_per_turn": 20 + 37 * (seed % 7)} for seed in range(300)
    ]
    by_lane = await asyncio.gather(*(pool.client.run(task) for task in shapes))
    assert pool.lane._table is not None
    assert pool.carried == 0
    monkeypatch.setattr(WorkerLane, "takes", lambda *_: False)
    alone = await asyncio.gather(*(pool.client.run(task) for task in shapes[::10]))
    assert pool.carried == 0
    for ours, theirs in zip(by_lane[::10], alone, strict=True):
        assert plain(MessageToDict(ours.episode)) == plain(MessageToDict(theirs.episode))
    for ended, task in zip(by_lane, shapes, strict=True):
        [trace] = ended.episode.traces
        assert len(trace.nodes) == 2 * task["turns"], ended


async def test_cancels_and_callers_that_leave_end_their_own_runs_only(pool: Pool) -> None:
    await pool.client.until_serving()
    short, cancelled, left, undisturbed = (
        pool.client.start(task) for task in ({"turns": 1}, SLOW, SLOW, SLOW)
    )
    for run in (short, cancelled, left, undisturbed):
        await run.next()
    assert (await short.finish()).code == "OK"
    assert await pool.client.cancel(short.run) == "DISCARDED"
    assert await pool.client.cancel(cancelled.run) == "ABORTED"
    ended = await cancelled.finish()
    assert (ended.code, ended.reason) == ("CANCELLED", "CANCEL_REQUESTED")
    await left.drop()
    async with asyncio.timeout(BOUND_SECONDS):
        while pool.carried > 1:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
    assert await pool.client.cancel(left.run) == "ABORTED"
    assert await pool.client.cancel(undisturbed.run) == "ABORTED", "it was live"
    assert (await undisturbed.finish()).reason == "CANCEL_REQUESTED"


async def test_a_deadline_ends_its_own_run_only(pool: Pool) -> None:
    undisturbed = pool.client.start(SLOW)
    await undisturbed.next()
    ended = await pool.client.run(SLOW, timeout=0.3)
    assert ended.code == "DEADLINE_EXCEEDED"
    assert await pool.client.cancel(ended.run) == "ABORTED"
    assert await pool.client.cancel(undisturbed.run) == "ABORTED", "it was live"
    await undisturbed.finish()


async def test_a_worker_that_stands_still_loses_all_runs_of_its_lane_and_comes_back(pool: Pool) -> None:
    runs, before = await pool.started(), pool.lane
    os.kill(pid := pool.pid, signal.SIGSTOP)
    try:
        assert await codes(runs) == LOST
    finally:
        os.kill(pid, signal.SIGCONT)
    await pool.client.until_serving()
    assert (await pool.client.run({"turns": 1})).code == "OK"
    assert pool.pid == pid
    assert pool.lane is not before


async def test_a_worker_that_is_killed_loses_all_runs_of_its_lane(pool: Pool) -> None:
    runs = await pool.started()
    os.kill(pool.pid, signal.SIGKILL)
    assert await codes(runs) == LOST
    await pool.client.until_serving()
    assert (await pool.client.run({"turns": 1})).code == "OK"


async def test_another_worker_at_the_same_address_gets_a_lane_of_its_own() -> None:
    address = f"127.0.0.1:{fixed_port()}"
    settings = BrokerSettings(heartbeat_seconds=0.2, lease_seconds=1.0, drain_seconds=0.0)
    async with BrokerServer(settings) as broker, StubClient(broker.address, History()) as client:
        pool = Pool(broker, client)
        arguments = ("--listen", address, "--broker", broker.address, "--env", "synthetic", *QUICK)
        async with serving("env_worker", *arguments, "--max-concurrent", str(RUNS)) as worker:
            runs, before = await pool.started(), pool.lane
            worker.process.kill()
            assert await codes(runs) == LOST
        async with serving("env_worker", *arguments):
            await client.until_serving()
            assert (await client.run({"turns": 1})).code == "OK"
            assert pool.lane is not before
            assert pool.lane._table is not None

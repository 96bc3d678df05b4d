"""Real processes: a broker that keeps workers, and what happens when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from grpc_health.v1 import health_pb2

from env_broker.config import BrokerSettings
from env_broker.server import BrokerServer
from tests.helpers.history import History
from tests.helpers.pools import serving
from tests.helpers.snapshot import alive, descendants
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUICK = ("--drain-seconds", "0.2", "--linger-seconds", "0.2")
SLOW = {"turns": 3, "turn_seconds": 30}
PATIENCE = 20


@asynccontextmanager
async def pool(**settings: Any) -> AsyncIterator[tuple[BrokerServer, StubClient]]:
    """A broker in this process with real workers, one of them ready."""
    values = {
        "workers": 1,
        "environments": ("synthetic",),
        "drain_seconds": 0.2,
        "linger_seconds": 0.2,
        **settings,
    }
    async with (
        BrokerServer(BrokerSettings(**values)) as broker,
        StubClient(broker.address, History()) as client,
    ):
        await client.until_serving()
        yield broker, client


async def gone(pid: int) -> None:
    """Wait until a process that may not be our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), PATIENCE)
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def test_a_broker_with_two_workers_serves_and_leaves_nothing_behind() -> None:
    arguments = ("--workers", "2", "--env", "synthetic", *QUICK)
    async with serving("env_broker", *arguments) as server, StubClient(server.address, History()) as client:
        await client.until_serving()
        assert [item.name for item in (await client.describe()).environments] == ["synthetic"]
        outcomes = await asyncio.gather(*(client.run({"turns": 3}) for _ in range(8)))
        assert {outcome.code for outcome in outcomes} == {"OK"}, outcomes
        assert all(outcome.episode.head.ok for outcome in outcomes)
        assert await client.cancel(outcomes[0].run) == "DISCARDED"
        assert await client.cancel(outcomes[0].run) == "DISCARDED"
        assert len(descendants(server.pid)) == 2
    assert server.process.returncode == 0


async def test_a_worker_that_is_killed_fails_its_run_and_is_replaced() -> None:
    async with pool() as (broker, client):
        run = client.start(SLOW)
        await run.next()
        (pid,) = broker.supervisor.pids
        os.kill(pid, signal.SIGKILL)
        outcome = await run.finish()
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST")
        assert "Locally cancelled" not in outcome.message
        assert "was killed by SIGKILL" in outcome.message
        assert "listening on" in outcome.message  # the last lines of its log
        await client.until_serving()
        assert (await client.run({"turns": 1})).code == "OK"
        assert broker.supervisor.pids != [pid]


async def test_a_run_waits_for_a_worker_that_is_being_replaced() -> None:
    async with pool() as (broker, client):
        (pid,) = broker.supervisor.pids
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        watch = client.health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        async for state in watch:
            if state.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        watch.cancel()
        assert (await client.run({"turns": 1})).code == "OK"


async def test_a_worker_that_stalls_is_lost_and_comes_back_clean() -> None:
    async with pool(heartbeat_seconds=0.2, lease_seconds=1.0) as (broker, client):
        run = client.start(SLOW)
        await run.next()
        (pid,) = broker.supervisor.pids
        os.kill(pid, signal.SIGSTOP)
        try:
            outcome = await run.finish()
            assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST")
            assert await client.cancel(run.run) == "ABORTED"
            refused = await client.run({"turns": 1})
            assert refused.reason == "NO_WORKER_READY"
            assert f"worker 0: process {pid} is stopped (SIGSTOP)" in refused.message
            (shown,) = broker.observer.view.take().workers
            assert f"no heartbeat came for 1 s; process {pid} is stopped (SIGSTOP)" in shown.detail
        finally:
            os.kill(pid, signal.SIGCONT)
        await client.until_serving()
        assert broker.supervisor.pids == [pid]
        assert (await client.run({"turns": 1})).code == "OK"


async def test_workers_end_when_their_broker_is_killed() -> None:
    command = ("-m", "env_broker", "serve", "--workers", "2", "--env", "synthetic")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode()
    async with StubClient(line.removeprefix("listening on ").strip(), History()) as client:
        await client.until_serving()
    workers = descendants(process.pid)
    assert len(workers) == 2
    process.kill()
    await process.wait()
    for pid in workers:
        await gone(pid)
        assert not alive(pid)


async def test_a_worker_that_cannot_start_is_reported_to_log_and_callers() -> None:
    async with (
        serving("env_broker", "--workers", "1", "--env", "nosuch=no.such.module:thing", *QUICK) as server,
        StubClient(server.address, History()) as client,
    ):
        outcome = await client.run({}, environment="nosuch")
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "NO_WORKER_READY")
        assert "before it registered; its last lines" in outcome.message
        assert "no.such.module" in outcome.message
    assert any("before it registered; its last lines" in line for line in server.log)


async def test_a_second_signal_hurries() -> None:
    arguments = ("--workers", "1", "--env", "synthetic", "--drain-seconds", "600", "--linger-seconds", "600")
    async with serving("env_broker", *arguments) as server, StubClient(server.address, History()) as client:
        await client.until_serving()
        run = client.start(SLOW, timeout=None)
        await run.next()
        watch = client.health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        async for state in watch:
            if state.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        watch.cancel()
        refused = await client.run({"turns": 1})
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "DRAINING")
        server.process.send_signal(signal.SIGTERM)
        assert (await run.finish()).code in ("UNAVAILABLE", "CANCELLED")
        await asyncio.wait_for(server.process.wait(), PATIENCE)


async def test_a_port_in_use_is_an_error_at_once() -> None:
    async with serving("env_broker") as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "env_broker", "serve", "--listen", server.address),
            stderr=asyncio.subprocess.PIPE,
        )
        _, words = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 1
        assert server.address in words.decode()


@pytest.mark.parametrize("arguments", [["serve", "--workers", "1"], ["serve", "--listen", "0.0.0.0:0"]])
async def test_wrong_settings_end_with_code_2(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_broker", *arguments), stderr=asyncio.subprocess.PIPE
    )
    _, words = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 2
    assert words.startswith(b"env-broker serve: --")

"""Real local workers: they come with the load and go with it, are replaced, and lose nothing on the way."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from env_broker.config import BrokerSettings
from env_broker.server import BrokerServer
from env_client import EnvClient
from tests.helpers.history import Ended, EnvironmentBegan, History, KeepBegan
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.local_pool import PATIENCE, LocalPool, local_pool
from tests.helpers.pools import serving
from tests.helpers.selective_hook import VARIABLE
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.gate import Gate

ELASTIC = {"min_workers": 1, "max_workers": 3, "max_concurrent": 2, "idle_seconds": 0.3}
QUICK = {"turns": 2, "turn_seconds": 0.1}
SCRIPT = ("--env", "scripted=tests.helpers.scripted_environment:ScriptedEnvironment")
HARMFUL = "harmful=tests.helpers.harmful_environment:HarmfulEnvironment"
ARRAYS = {"turns": 1, "tokens_per_turn": 20, "layers": 2, "top_k": 2}
ARRAY_BYTES = 8192
"""What one episode of these takes."""
HOLDING = ("--hook", "tests.helpers.selective_hook:SelectiveHook")


async def load(pool: LocalPool, at_once: int, true: Callable[[], object], **arguments: Any) -> None:
    """Keep so many runs going until that is so."""
    enough = False

    async def caller() -> None:
        while not enough:
            await pool.client.run(QUICK, **arguments)

    callers = [asyncio.create_task(caller()) for _ in range(at_once)]
    try:
        await pool.until(true)
    finally:
        enough = True
        await asyncio.gather(*callers)


async def test_workers_come_and_go_with_the_load_and_no_run_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with local_pool(tmp_path, monkeypatch, late_cancel_seconds=30.0, **ELASTIC) as pool:
        await load(pool, 6, lambda: pool.ready == 3)
        # With 4 of 6 slots taken there is no reason to do anything.
        settled = len(pool.sizes)
        await load(pool, 4, lambda: len(pool.sizes) >= settled + 4)
        assert set(pool.sizes[settled:]) == {3}
        # A reply that can still be taken back, on each of them.
        async with StubClient(pool.broker.address, pool.pipe.history) as stub:
            replied = await asyncio.gather(*(stub.run(QUICK) for _ in range(6)))
            pool.client.runs.extend(outcome.run for outcome in replied)
            assert len({worker.last_picked for worker in pool.broker.pool.workers()}) == 3
            await pool.looks(5)
            assert pool.broker.supervisor.size == 3
            assert [await stub.cancel(outcome.run) for outcome in replied] == ["DISCARDED"] * 6
        await pool.until(lambda: len(pool.broker.supervisor.views()) == 1)
        assert pool.ready == 1
        ends = len(pool.sizes)
        await load(pool, 1, lambda: len(pool.sizes) >= ends + 3)
        assert set(pool.sizes[ends:]) == {1}
        ended = [end.code for run in pool.client.runs for end in pool.pipe.history.of(run, Ended)]
        assert ended == ["OK"] * len(pool.client.runs)
        assert (min(pool.sizes), max(pool.sizes)) == (1, 3)
    assert caplog.text.count("is told to drain") == 2, "it flapped"
    assert sum(" started" in record.getMessage() for record in caplog.records) == 3, "it flapped"
    assert "was killed" not in caplog.text


async def test_a_worker_that_holds_arrays_stays_until_they_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_pool(tmp_path, monkeypatch, **{**ELASTIC, "max_workers": 2}) as pool:
        await load(pool, 4, lambda: pool.ready == 2)
        holders: set[str] = set()
        while len(holders) < 2:
            # So many at once that the worker which is spared gets some too.
            await asyncio.gather(*(pool.client.run(QUICK, group_id="hold") for _ in range(4)))
            holders = {path.name.partition("-")[0] for path in pool.held.iterdir()}
        assert holders == {str(pid) for pid in pool.broker.supervisor.pids}
        await pool.looks(5)
        assert pool.broker.supervisor.size == 2
        kept = sorted(holders)[0]
        for path in pool.held.iterdir():
            if not path.name.startswith(kept):
                path.unlink()
        await pool.until(lambda: len(pool.broker.supervisor.views()) == 1)
        assert pool.broker.supervisor.pids == [int(kept)]
        assert pool.broker.pool.workers()[0].load.held_array_bytes > 0
        for path in pool.held.iterdir():
            path.unlink()


async def test_one_that_somebody_stops_is_replaced_at_once_while_its_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with local_pool(tmp_path, monkeypatch, workers=1, drain_seconds=30.0) as pool:
        script = {"script": [["trace"], ["say", 1], ["wait", str(gate.path)]]}
        run = asyncio.create_task(pool.client.run(script, env="scripted"))
        await pool.until(lambda: pool.broker.pool.workers()[0].load.running == 1)
        (first,) = pool.broker.supervisor.pids
        os.kill(first, signal.SIGTERM)
        await pool.until(lambda: pool.ready == 1 and len(pool.broker.supervisor.views()) == 2)
        assert not isinstance(await pool.client.run(QUICK), Exception)
        gate.open()
        assert not isinstance(await asyncio.wait_for(run, PATIENCE), Exception)
        await pool.until(lambda: len(pool.broker.supervisor.views()) == 1)
        assert first not in pool.broker.supervisor.pids
        assert set(pool.sizes) == {1}


async def test_one_whose_interpreter_is_held_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_pool(tmp_path, monkeypatch, workers=1, lease_seconds=1.0, stuck_seconds=0.5) as pool:
        (first,) = pool.broker.supervisor.pids
        error = await pool.client.run({"do": [["trace"], ["hold"]]}, env="harmful")
        assert getattr(error, "reason", "") == "WORKER_LOST"
        await pool.until(lambda: pool.ready == 1)
        assert first not in pool.broker.supervisor.pids
        assert "--isolate=process would contain" in pool.broker.supervisor.detail()
        assert not isinstance(await pool.client.run(QUICK), Exception)


async def test_another_is_started_for_the_only_one_that_is_stopped_and_leaves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = {"lease_seconds": 1.0, "heartbeat_seconds": 0.2}
    async with local_pool(tmp_path, monkeypatch, late_cancel_seconds=0.2, **ELASTIC, **lease) as pool:
        (first,) = pool.broker.supervisor.pids
        os.kill(first, signal.SIGSTOP)
        try:
            await pool.until(lambda: not pool.ready)
            # It waits for the other one: no pool below its maximum refuses for good.
            await pool.until(lambda: pool.broker.supervisor.size == 2)
            assert not isinstance(await pool.client.run(QUICK), Exception)
        finally:
            os.kill(first, signal.SIGCONT)
        await pool.until(lambda: pool.ready == 2)
        await pool.until(lambda: len(pool.broker.supervisor.views()) == 1)
        assert not isinstance(await pool.client.run(QUICK), Exception)


@pytest.mark.parametrize(
    ("group", "more", "code"),
    [("", [], 0), ("hold", [], 4), ("hold", [["forever"]], 5), ("hold gate={}", [], 3)],
    ids=["nothing", "arrays", "runs", "hooks"],
)
async def test_a_broker_says_by_its_exit_code_what_its_stop_lost(
    tmp_path: Path, new_gate: Callable[[], Gate], group: str, more: list[Any], code: int
) -> None:
    (tmp_path / "held").mkdir()
    pipe = HistoryPipe(tmp_path / "history")
    variables = {**pipe.variables, VARIABLE: str(tmp_path / "held")}
    bounds = ("--drain-seconds", "0.2", "--linger-seconds", "0.2", "--kill-seconds", "0.3")
    arguments = ("--workers", "1", *SCRIPT, *HOLDING, *bounds)
    async with (
        serving("env_broker", *arguments, variables=variables) as server,
        StubClient(server.address, History()) as client,
    ):
        await client.until_serving()
        script = {"script": [["trace"], ["say", 1], *more]}
        group = group.format(new_gate().path)
        run = client.start(script, environment="scripted", group_id=group, timeout=None)
        if code in (0, 4):
            assert (await run.finish()).code == "OK"
        else:
            await pipe.seen(run.run, KeepBegan if code == 3 else EnvironmentBegan)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(server.process.wait(), PATIENCE)
    pipe.close()
    assert server.process.returncode == code


async def test_runs_that_are_lost_while_the_broker_drains_are_in_its_exit_code(
    new_gate: Callable[[], Gate],
) -> None:
    gate = new_gate()
    arguments = ("--workers", "1", "--env", HARMFUL, "--drain-seconds", "30", "--linger-seconds", "0")
    async with (
        serving("env_broker", *arguments) as server,
        StubClient(server.address, History()) as client,
    ):
        await client.until_serving()
        others = client.start({"do": [["trace"], ["stubborn"]]}, environment="harmful", timeout=None)
        # As if nothing were amiss.
        exits = {"do": [["trace"], ["wait", str(gate.path)], ["exit", 0]]}
        culprit = client.start(exits, environment="harmful", timeout=None)
        await asyncio.gather(others.next(), culprit.next())
        server.process.send_signal(signal.SIGTERM)
        await server.said("broker=.* stops")
        gate.open()
        outcomes = await asyncio.gather(others.finish(), culprit.finish())
        assert [outcome.reason for outcome in outcomes] == ["WORKER_LOST"] * 2
        await asyncio.wait_for(server.process.wait(), PATIENCE)
    assert server.process.returncode == 5


async def test_a_pool_whose_worker_is_full_of_arrays_grows_while_the_runs_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENV_WORKER_ARRAY_MEMORY_BYTES", str(6 * ARRAY_BYTES))
    elastic = {**ELASTIC, "max_workers": 2, "hook": "array-keeper", "environments": ("synthetic",)}
    async with BrokerServer(BrokerSettings(heartbeat_seconds=0.1, linger_seconds=0.2, **elastic)) as broker:
        async with asyncio.timeout(PATIENCE), EnvClient(broker.address, env="synthetic", owner="o") as client:
            await asyncio.gather(*(client.run(ARRAYS) for _ in range(2)))
            # Between what one has room for and what two have.
            await asyncio.gather(*(client.run(ARRAYS) for _ in range(7)))
            held = [worker.load.held_arrays for worker in broker.pool.workers()]
            assert len(held) == broker.supervisor.size == 2
        broker.hurry()

"""What a pool of real processes says of itself: its view, its counters, its log, commands that ask."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import TYPE_CHECKING

from tests.helpers import oracle
from tests.helpers.history import Ended, EnvironmentBegan
from tests.helpers.pool_watch import counters_add_up, states, watcher
from tests.helpers.pools import QUICK_STOP, broker_subject, serving
from tests.helpers.stub_client import StubClient, new_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.gate import Gate

SECONDS = 20
REFUSED = {"INVALID_TASK", "ENVIRONMENT_NOT_FOUND", "DUPLICATE_REQUEST_ID"}


async def ask(command: str, address: str, *arguments: str) -> tuple[int | None, str]:
    """Exit code and output of `env-client COMMAND`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_client", command, "--broker", address, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode, output.decode()


async def test_a_pool_shows_its_runs_its_losses_and_what_does_not_go_on(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    async with (
        broker_subject(tmp_path, "--quiet-seconds", "0.5") as pool,
        watcher(pool.address) as watching,
        StubClient(pool.address, pool.pipe.history) as client,
    ):
        watch = watching.watch()
        view = await watch.until(lambda view: states(view) == ["READY", "READY"])
        assert {worker.local_slot for worker in view.workers} == {"0", "1"}
        assert view.counters["runs"] == 0

        # A mix of ends, with two runs that hang at a gate.
        gate = new_gate()
        hanging = [["trace"], ["say", 1], ["wait", str(gate.path)], ["say", 1]]
        held = [client.start({"script": hanging}, environment="scripted") for _ in range(2)]
        for run in held:
            await run.next()
        known = new_id()
        outcomes = await asyncio.gather(
            *(client.run({"turns": 2}) for _ in range(12)),
            client.run({"turns": 1}, request_id=known),
            client.run({"script": [["raise", "early"]]}, environment="scripted"),
            client.run({"turns": "x"}),
            client.run({}, environment="nowhere"),
        )
        outcomes += [await client.run({}, request_id=known)]
        cancelled = client.start({"script": [["trace"], ["say", 1], ["forever"]]}, environment="scripted")
        await cancelled.next()
        assert await client.cancel(cancelled.run) == "ABORTED"
        outcomes += [await cancelled.finish()]
        dropped = client.start({"turns": 2, "turn_seconds": 30})
        await dropped.next()
        outcomes += [await dropped.drop()]
        # As many as are in the history, each by its own name.
        due = {
            "replied": sum(outcome.code == "OK" for outcome in outcomes),
            "cancelled": sum(outcome.code == "CANCELLED" for outcome in outcomes),
            "refused": sum(outcome.reason in REFUSED for outcome in outcomes),
            "failed": sum(outcome.reason == "ENVIRONMENT_FAILED" for outcome in outcomes),
        }
        assert all(due.values())
        assert sum(due.values()) == len(outcomes)
        view = await watch.until(lambda view: view.counters["cancelled"] == due["cancelled"])
        assert {name: view.counters[name] for name in due} == due
        assert view.counters["runs"] == client.asked == len(outcomes) + 2
        assert sum(worker.running for worker in view.workers) == 2

        # Only the two that hang are left: the log names them.
        await pool.server.said(r"WARNING.* no run has gone on for")
        for run in held:
            line = await pool.server.said(f"run={run.run[:8]} worker=")
            assert re.search(
                r"worker=[0-9a-f]{8} at 127.0.0.1:\d+ last event='message \d+ passed' age=", line
            )
            assert run.run not in "\n".join(pool.server.log)
        gate.open()
        first = await asyncio.wait(
            [asyncio.create_task(run.finish(), name=run.run) for run in held],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [task.result().code for task in first[0]] == ["OK"]
        assert "INFO" in await pool.server.said("runs go on again")

        # The other one's worker is killed.
        [last] = first[1]
        [began] = pool.pipe.history.of(last.get_name(), EnvironmentBegan)
        os.kill(began.pid, signal.SIGKILL)
        assert (await last).reason == "WORKER_LOST"
        view = await watch.until(
            lambda view: view.counters["workers_lost"] and "SIGKILL" in str(view.workers[-1].detail)
        )
        assert states(view)[-1] == "LOST"
        assert "its last lines" in view.workers[-1].detail
        view = await watch.until(lambda view: states(view) == ["READY", "READY", "LOST"])
        counters_add_up(view)
        assert (view.counters["runs"], view.counters["failed"]) == (len(outcomes) + 2, due["failed"] + 1)
        assert view.counters["replied"] == due["replied"] + 1
        ends = [end.code for run in client.runs for end in pool.pipe.history.of(run, Ended)]
        assert len(ends) == view.counters["runs"]

        code, shown = await ask("top", pool.address, "--once")
        assert code == 0
        assert "workers: 2 READY, 1 LOST; 0 of 64 slots taken" in shown
        assert f"{view.counters['runs']} runs: {view.counters['replied']} replied" in shown
        assert "was killed by SIGKILL" in shown
        assert await ask("health", pool.address) == (0, "SERVING\n")
        story = await pool.pipe.at_rest([run for run in client.runs if run != last.get_name()])
        oracle.contract_holds(story)


async def test_a_pool_that_cannot_start_says_why() -> None:
    arguments = ("--workers", "1", "--env", "no_such_module:Environment", *QUICK_STOP)
    async with serving("env_broker", *arguments) as server, watcher(server.address) as watching:
        view = await watching.watch().until(lambda view: "no_such_module" in str(view.workers))
        assert states(view) == ["STARTING"]
        assert view.workers[0].local_slot == "0"
        code, said = await ask("health", server.address)
        assert code == 1
        assert said.startswith(
            "NOT_SERVING\n0 of 1 workers of the pool are ready; local worker 0 is STARTING"
        )
        assert "no_such_module" in said

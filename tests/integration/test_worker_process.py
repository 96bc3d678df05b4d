"""`env-worker serve` as a process: how it starts, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.helpers import oracle
from tests.helpers.history import DiscardBegan, History, KeepBegan, KeepReturned
from tests.helpers.pools import ROOT, serving
from tests.helpers.stub_client import StubClient
from tests.helpers.worker_process import worker_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.gate import Gate

SECONDS = 20.0


async def command(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of `env-worker arguments`, which has to end by itself."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_worker", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_help_names_the_command_and_every_flag() -> None:
    code, out, _ = await command("--help")
    assert code == 0
    assert "serve" in out
    code, out, _ = await command("serve", "--help")
    assert code == 0
    assert "ENV_WORKER_LATE_CANCEL_SECONDS" in out
    assert "\n  4  the hook still held training arrays" in out


SERVE = ("serve", "--env", "synthetic")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["expected the command serve", "--help"]),
        (("server",), ["'server'"]),
        (("serve",), ["--env is missing", "--env synthetic"]),
        (("serve", "--env", "no-such"), ["'no-such'", "synthetic"]),
        (("serve", "--env", "no_such_module:x"), ["no_such_module", "PYTHONPATH"]),
        ((*SERVE, "--hook", "no_such_module:hook"), ["no_such_module:hook", "No module named"]),
        ((*SERVE, "--hook", "os:path"), ["os:path", "no method keep"]),
        ((*SERVE, "--listen", "0.0.0.0:0"), ["neither encrypted nor authenticated", "--insecure"]),
        ((*SERVE, "--listen", "nowhere"), ["--listen", "HOST:PORT"]),
        ((*SERVE, "--kill-seconds", "nan"), ["--kill-seconds is nan"]),
        ((*SERVE, "--broker", "nowhere"), ["--broker", "HOST:PORT"]),
    ],
)
async def test_what_cannot_start_ends_at_once_with_the_reason(
    arguments: tuple[str, ...], words: list[str]
) -> None:
    code, out, err = await command(*arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


async def test_settings_come_from_variables_too() -> None:
    code, _, err = await command("serve", ENV_WORKER_ENV="synthetic", ENV_WORKER_HOOK="os:sep")
    assert code == 2
    assert "os:sep" in err


async def test_a_second_server_on_the_port_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = await command(*SERVE, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 2
    assert "in use" in err
    async with serving("env_worker", "--env", "synthetic", "--linger-seconds", "0") as server:
        code, _, err = await command(*SERVE, "--listen", server.address)
        assert code == 2
        assert server.address in err


async def test_beyond_loopback_with_insecure() -> None:
    code = None
    async with serving("env_worker", "--env", "synthetic", "--listen", "0.0.0.0:0", "--insecure") as server:
        assert server.address.startswith("0.0.0.0:")
        async with StubClient(f"127.0.0.1:{server.address.rpartition(':')[2]}", History()) as client:
            assert (await client.describe()).role == "worker"
        server.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(server.process.wait(), SECONDS)
    assert code == 0


TURN = [["trace"], ["say", 3]]


async def test_sigterm_lets_running_episodes_finish_and_takes_no_new_ones(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with worker_process(tmp_path, "--linger-seconds", "0") as subject:
        task = {"script": [*TURN, ["wait", str(gate.path)], ["say", 3]]}
        run = subject.client.start(task, environment="scripted")
        await run.next()
        subject.signal()
        await subject.until_draining()
        refused = await subject.client.run({"script": TURN}, environment="scripted")
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "DRAINING")
        gate.open()
        assert (await run.finish()).code == "OK"
        assert await subject.exit_code() == 0
        oracle.promises_hold(await subject.pipe.at_rest(subject.client.runs), asked=subject.client.asked)


async def test_after_the_drain_time_a_run_is_ended_and_nothing_is_kept(tmp_path: Path) -> None:
    async with worker_process(tmp_path, "--drain-seconds", "0.1") as subject:
        run = subject.client.start({"script": [*TURN, ["forever"]]}, environment="scripted")
        await run.next()
        subject.signal()
        outcome = await run.finish()
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST")
        assert await subject.exit_code() == 5
        oracle.promises_hold(await subject.pipe.at_rest(subject.client.runs), asked=subject.client.asked)


async def test_a_second_signal_skips_drain_and_linger(tmp_path: Path) -> None:
    async with worker_process(tmp_path, "--drain-seconds", "600", "--linger-seconds", "600") as subject:
        done = await subject.client.run({"script": TURN}, environment="scripted")
        assert done.code == "OK"
        run = subject.client.start({"script": [*TURN, ["forever"]]}, environment="scripted")
        await run.next()
        subject.signal()
        await subject.until_draining()
        subject.signal()
        assert (await run.finish()).reason == "WORKER_LOST"
        assert await subject.exit_code() == 5


async def test_within_the_window_a_stopping_worker_can_still_be_cancelled(tmp_path: Path) -> None:
    async with worker_process(tmp_path, "--linger-seconds", "600") as subject:
        done = await subject.client.run({"script": TURN}, environment="scripted")
        assert done.code == "OK"
        subject.signal()
        await subject.until_draining()
        assert await subject.client.cancel(done.run) == "DISCARDED"
        assert await subject.exit_code() == 0, "its last window closed, so it leaves"
        history = await subject.pipe.at_rest(subject.client.runs)
        assert len(history.of(done.run, DiscardBegan)) == 1
        oracle.promises_hold(history, asked=subject.client.asked)


async def test_sigterm_while_keep_runs_waits_for_the_discard(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with worker_process(tmp_path, "--drain-seconds", "0", "--kill-seconds", "600") as subject:
        run = subject.client.start({"script": TURN}, environment="scripted", group_id=f"gate={gate.path}")
        await subject.pipe.seen(run.run, KeepBegan)
        subject.signal()
        assert (await run.finish()).reason == "WORKER_LOST"
        gate.open()
        assert await subject.exit_code() == 5
        history = await subject.pipe.at_rest(subject.client.runs)
        assert len(history.of(run.run, KeepReturned, DiscardBegan)) == 2
        oracle.promises_hold(history, asked=subject.client.asked)


async def test_a_keep_that_does_not_end_is_left_behind_with_exit_code_3(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with worker_process(tmp_path, "--drain-seconds", "0", "--kill-seconds", "0.1") as subject:
        run = subject.client.start({"script": TURN}, environment="scripted", group_id=f"gate={gate.path}")
        await subject.pipe.seen(run.run, KeepBegan)
        subject.signal()
        assert (await run.finish()).reason == "WORKER_LOST"
        assert await subject.exit_code() == 3
        named = [line for line in subject.server.log if "UNFINISHED" in line]
        assert len(named) == 1
        assert run.run[:8] in named[0]
        assert run.run not in "".join(subject.server.log)


async def test_an_environment_that_blocks_its_loop_holds_up_nobody_else(
    tmp_path: Path, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    async with worker_process(tmp_path, "--drain-seconds", "0", "--linger-seconds", "0") as subject:
        blocked = subject.client.start(
            {"script": [*TURN, ["block", str(gate.path)]]}, environment="scripted", timeout=None
        )
        await blocked.next()
        assert (await subject.client.describe()).ready_workers == 1
        assert await subject.client.cancel(blocked.run) == "ABORTED"
        assert (await blocked.finish()).reason == "CANCEL_REQUESTED"
        subject.signal()
        assert await subject.exit_code() == 0, "also while an environment blocks"


async def test_a_worker_ends_with_its_brokers_standard_input() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "env_worker", *SERVE, "--exit-with-stdin"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert (await asyncio.wait_for(process.stdout.readline(), SECONDS)).startswith(b"listening on ")
    process.stdin.close()
    _, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert (process.returncode, b"Fatal" in err) == (0, False)

"""`env-client top`, and what a client says of a pool that is not ready."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.pool_service_pb2 import WatchPoolResponse
from google.protobuf.json_format import ParseDict

from env_client import EnvClient, SyncEnvClient, UnavailableError
from env_client.cli import main
from env_client.errors import EnvError
from env_client.pool import readiness
from env_client.top import JsonTop, PlainTop, PoolWatch, RichTop, table_lines
from tests.helpers.scripted_end import End
from tests.helpers.scripted_pool import ScriptedPool, a_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripted_service import ScriptedService

GONE = End(grpc.StatusCode.UNAVAILABLE)
SECONDS = 30
_TOLD_SECONDS = 15
"""Less than what a scripted pool waits before it ends a view."""


def test_a_view_as_lines() -> None:
    assert table_lines(a_view(), "h:1") == [
        "h:1  workers: 1 READY, 1 DRAINING, 1 LOADING, 1 STARTING, 1 LOST; 3 of 16 slots taken; "
        "3 of 1024 runs queued",
        "since its start: 20 runs: 11 replied, 2 cancelled, 1 failed, 3 refused, 3 carried now; "
        "1 worker lost",
        "worker    slot  address         state     runs  windows  arrays   since  environments",
        "aaaaaaaa  -     127.0.0.1:7001  READY     3/8   2        3.0 MiB  1m40s  reasoning-gym, synthetic",
        "bbbbbbbb  -     host:7002       DRAINING  0/8   0        0 B      2h05m  -",
        "cccccccc  -     host:1          LOADING   0/4   0        0 B      -      -",
        "    the broker cannot reach it: refused",
        "-         1     -               STARTING  -     0        0 B      -      -",
        "    it waits to be started again; worker 1 exited with code 2; its last lines:  [2J[bold]boom",
        "dddddddd  0     host:7004       LOST      -     0        0 B      -      -",
        "    it was lost: its stream broke",
    ]


def test_an_empty_pool_and_a_state_of_a_later_version() -> None:
    view = WatchPoolResponse()
    assert "workers: none; 0 of 0 slots taken" in table_lines(view, "h:1")[0]
    assert table_lines(view, "h:1")[1].endswith("; 0 workers lost")
    view.min_local_workers, view.max_local_workers = 1, 8
    assert "workers: none (1 to 8 local ones); 0 of 0 slots taken" in table_lines(view, "h:1")[0]
    view.workers.add(instance="e" * 32, state=77)  # type: ignore[arg-type]
    assert "1 state 77" in table_lines(view, "h:1")[0]
    assert "0 of 1 workers of the pool are ready; worker eeeeeeee is state 77" in readiness(view)


def test_a_view_on_a_terminal() -> None:
    pytest.importorskip("rich")
    out = io.StringIO()
    with RichTop(out, "h:1") as display:
        display.show(a_view())
        display.say("trying again")
        display.show(a_view())
    text = out.getvalue()
    assert "DRAINING" in text
    assert "[bold]boom" in text  # what a worker printed is no markup
    assert "\x1b[2J" not in text


def test_once(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedPool((a_view(),)) as pool:
        assert main(["top", "--once", "--broker", pool.address, "--interval-seconds", "2.5"]) == 0
    assert capsys.readouterr().out.splitlines() == table_lines(a_view(), pool.address)
    assert [request.min_interval_millis for request in pool.requests] == [2_500]


def test_json_has_one_object_for_each_view(capsys: pytest.CaptureFixture[str]) -> None:
    empty = WatchPoolResponse(max_queued_runs=8)
    with ScriptedPool((empty, a_view(), GONE)) as pool, pytest.raises(Stop):
        PoolWatch(
            pool.address, JsonTop(sys.stdout, sys.stderr), interval_seconds=0.1, pause=Pauses(after=1)
        ).run()
    printed = capsys.readouterr()
    views = [ParseDict(json.loads(line), WatchPoolResponse()) for line in printed.out.splitlines()]
    assert views == [empty, a_view()]
    assert json.loads(printed.out.splitlines()[0])["workers"] == []
    assert f"no view of {pool.address}, trying again: UNAVAILABLE" in printed.err


class Stop(Exception):
    """Ends what would go on."""


class Pauses:
    """Takes no time. Raises Stop at the pause of that number."""

    def __init__(self, after: int, then: Callable[[], object] = lambda: None) -> None:
        self.seconds: list[float] = []
        self._after = after
        self._then = then

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._then()
        if len(self.seconds) == self._after:
            raise Stop


def test_it_comes_back_when_the_broker_does() -> None:
    out, report, again = io.StringIO(), io.StringIO(), list[ScriptedPool]()

    def restart() -> None:
        if not again:
            pool.__exit__(None, None, None)
            later = (WatchPoolResponse(max_queued_runs=77),)
            again.append(ScriptedPool(later, later, port=int(pool.address.rpartition(":")[2])).__enter__())

    class Display(PlainTop):
        def show(self, view: WatchPoolResponse) -> None:
            super().show(view)
            if view.max_queued_runs == 77:
                raise Stop

    pool = ScriptedPool((a_view(), End(grpc.StatusCode.RESOURCE_EXHAUSTED, "TABLE_FULL"))).__enter__()
    pauses = Pauses(after=100, then=restart)
    with pytest.raises(Stop):
        PoolWatch(pool.address, Display(out, report, pool.address), interval_seconds=0.1, pause=pauses).run()
    with pytest.raises(AssertionError, match="1 calls did not come"):
        again[0].__exit__(None, None, None)
    assert out.getvalue().count("workers:") == 2
    assert "\n\n" in out.getvalue()
    assert "trying again: RESOURCE_EXHAUSTED TABLE_FULL" in report.getvalue()


def test_where_there_is_no_pool(service: ScriptedService, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--broker", service.address]) == 1
    assert "it is a lone worker" in capsys.readouterr().err
    assert main(["top", "--once", "--broker", "127.0.0.1:1"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_a_view_that_is_refused_is_an_error() -> None:
    refused = End(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    with ScriptedPool((refused,)) as pool, pytest.raises(EnvError, match="INVALID_REQUEST"):
        PoolWatch(pool.address, PlainTop(sys.stdout, sys.stderr, ""), interval_seconds=0.1).run()


@pytest.mark.parametrize("stopped", [False, True], ids=["it runs", "it is stopped"])
@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_ends_it_quietly(terminal: bool, stopped: bool) -> None:
    """Where it is stopped, as by Ctrl-Z, the kernel mostly gives the signal to a thread of gRPC's."""
    with ScriptedPool((a_view(),)) as pool:
        command: list[str] = [sys.executable, "-m", "env_client", "top", "--broker", pool.address]
        ours, theirs = pty.openpty() if terminal else os.pipe()
        with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
            os.close(theirs)
            seen = b""
            while b"trying" not in seen and b"LOST" not in seen:
                seen += os.read(ours, 65_536)
            if stopped:
                process.send_signal(signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            try:
                errors = process.communicate(timeout=_TOLD_SECONDS)[1]
            finally:
                process.kill()
        os.close(ours)
    assert (process.returncode, errors) == (0, "")


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    views = [WatchPoolResponse(max_queued_runs=number) for number in range(1, 200)]
    with ScriptedPool((a_view(), *views)) as pool:
        top = [sys.executable, "-m", "env_client", "top", "--json", "--broker", pool.address]
        process = subprocess.Popen(top, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline()
            process.stdout.close()
            errors = process.stderr.read()
            assert process.wait(SECONDS) == 0
    assert errors == ""


def test_health_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedPool((a_view(),)) as pool:
        assert main(["health", "--broker", pool.address]) == 1
    first, why = capsys.readouterr().out.splitlines()
    assert first == "NOT_SERVING"
    assert why == readiness(a_view())
    assert why.startswith("1 of 5 workers of the pool are ready; worker bbbbbbbb at host:7002 is DRAINING; ")
    assert "worker cccccccc at host:1 is LOADING (the broker cannot reach it: refused)" in why
    assert "local worker 1 is STARTING (it waits to be started again; worker 1 exited with code 2" in why


def test_a_broker_that_stops_is_said_first() -> None:
    view = WatchPoolResponse(workers=[{"instance": "a" * 32, "state": 3}], stopping="the broker stops\x1b[2J")  # type: ignore[list-item]
    assert readiness(view) == "the broker stops [2J; 1 of 1 workers of the pool are ready"
    assert table_lines(view, "h:1")[0].startswith("h:1  the broker stops [2J; workers: 1 READY; 0 of 0 slots")


def test_so_many_workers_are_named_and_no_more() -> None:
    view = WatchPoolResponse(workers=[{"instance": f"{n:032x}", "state": 5} for n in range(20)])  # type: ignore[list-item]
    assert readiness(view).count(" is LOST") == 8
    assert readiness(view).endswith("; and 12 more")


async def test_a_wait_in_vain_says_what_the_pool_says() -> None:
    with ScriptedPool((a_view(),)) as pool:
        async with EnvClient(pool.address) as client:
            with pytest.raises(UnavailableError) as error:
                await client.wait_until_ready(0.2)
    assert f"at last: NOT_SERVING ({readiness(a_view())}); see the server's log" in str(error.value)


def test_a_synchronous_wait_in_vain_says_it_too() -> None:
    with (
        ScriptedPool((a_view(),)) as pool,
        SyncEnvClient(pool.address) as client,
        pytest.raises(UnavailableError) as error,
    ):
        client.wait_until_ready(0.2)
    assert f"at last: NOT_SERVING ({readiness(a_view())}); see the server's log" in str(error.value)


@pytest.mark.parametrize("calls", [(), ((End(grpc.StatusCode.UNAVAILABLE),),)])
async def test_a_wait_in_vain_without_a_view_adds_nothing(service: ScriptedService, calls: Any) -> None:
    service.serve(2)
    async with EnvClient(service.address) as client:
        with pytest.raises(UnavailableError, match=r"at last: NOT_SERVING; see the server's log"):
            await client.wait_until_ready(0.1)

"""A silent run is not a dead one, on every hop, and a hop that is dead is found out without a word.

The real times: a broker pings its workers every 5 s, everybody else pings every 10 s, and waits as long for
the answer; a run may be silent for any number of such periods, half an hour or more. Here every process pings
every 0.6 s.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from env_client import EnvClient, RunDeadlineError, channels
from tests.helpers import oracle
from tests.helpers.brisk_keepalive import PING_SECONDS, VARIABLE, brisk
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import HOOK, QUICK_STOP, SCRIPTED, serving
from tests.helpers.recorded_client import RecordedClient
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.helpers.gate import Gate

MODULE = "tests.helpers.brisk_keepalive"
SILENCE_SECONDS = 4.0
COMPLAINTS = ("too_many_pings", "Too many pings", "ENHANCE_YOUR_CALM")


async def test_a_silent_run_survives_and_a_stopped_worker_is_found_by_pings(
    tmp_path: Path, new_gate: Callable[[], Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SILENCE_SECONDS > 6 * PING_SECONDS
    monkeypatch.setattr(channels, "_OPTIONS", brisk(channels._OPTIONS))
    pipe, gate = HistoryPipe(tmp_path / "history"), new_gate()
    silent: dict[str, Any] = {"script": [["trace"], ["say", 1], ["wait", str(gate.path)], ["say", 1]]}
    endless: dict[str, Any] = {"script": [["trace"], ["say", 1], ["forever"]]}
    # A lease that never ends by itself: what is found here is found by the pings.
    lease = ("--lease-seconds", "600")
    variables = dict(pipe.variables)
    async with serving(MODULE, *lease, *QUICK_STOP, variables={VARIABLE: "env_broker"}) as broker:
        arguments = ("--broker", broker.address, "--env", SCRIPTED, "--hook", HOOK, *QUICK_STOP)
        variables[VARIABLE] = "env_worker"
        async with (
            serving(MODULE, *arguments, variables=variables) as worker,
            EnvClient(broker.address, env="scripted", timeout=30.0) as client,
            StubClient(broker.address, pipe.history) as stub,
        ):
            await stub.until_serving()
            recorded = RecordedClient(client, pipe.history)
            run = asyncio.create_task(recorded.run(silent))
            # Meanwhile another one is as silent, until its deadline: nothing else ends it before.
            ended = await recorded.run(endless, timeout=SILENCE_SECONDS)
            assert isinstance(ended, RunDeadlineError)
            assert not run.done()
            gate.open()
            assert not isinstance(await run, Exception)
            for server in (broker, worker):
                assert not [line for line in server.log if any(words in line for words in COMPLAINTS)]

            lost = stub.start(endless, environment="scripted")
            await lost.next()
            began = time.monotonic()
            os.kill(worker.pid, signal.SIGSTOP)
            try:
                outcome = await lost.finish()
                assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST")
                assert time.monotonic() - began < 5.0
                refused = await stub.run(endless, environment="scripted")
                assert (refused.code, refused.reason) == ("UNAVAILABLE", "NO_WORKER_READY")
            finally:
                os.kill(worker.pid, signal.SIGCONT)
            await stub.until_serving()
            assert (await stub.run({"script": [["trace"]]}, environment="scripted")).code == "OK"
        runs = [*recorded.runs, *stub.runs]
        oracle.contract_holds(await pipe.at_rest(runs), asked=len(runs))
    pipe.close()

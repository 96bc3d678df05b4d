"""`--isolate process`: the same episodes, from processes that may do what they like to themselves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import oracle
from tests.helpers.history import KeepBegan
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import HOOK, QUICK_STOP, serving
from tests.helpers.snapshot import alive, descendants, open_files
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from tests.helpers.gate import Gate
    from tests.helpers.pools import ServerProcess
    from tests.helpers.stub_client import OpenRun, Outcome

HARMFUL = "harmful=tests.helpers.harmful_environment:HarmfulEnvironment"
SMALL = {"turns": 2, "tokens_per_turn": 20, "layers": 1, "top_k": 1}
SECONDS = 20.0


class Subject:
    """A worker that isolates its environments, a client of it, and what became of its runs."""

    def __init__(self, server: ServerProcess, client: StubClient, pipe: HistoryPipe) -> None:
        self.server = server
        self.client = client
        self.pipe = pipe
        self.at_first: Any = None

    def present(self) -> tuple[int, int, int, int]:
        """Of the worker: its descendants, those that nobody has reaped, its pipes and its sockets."""
        files = open_files(self.server.pid)
        pid = self.server.pid
        return len(descendants(pid)), zombies(pid), files["pipe"], files["socket"]

    def start(self, *steps: Sequence[Any], **fields: Any) -> OpenRun:
        """A run of these steps."""
        return self.client.start({"do": list(steps)}, environment="harmful", **fields)

    async def run(self, *steps: Sequence[Any]) -> Outcome:
        """The same, to its end."""
        return await self.start(*steps).finish()

    def logged(self, *words: str) -> list[str]:
        """The lines of the worker's log that hold all of these."""
        return [line for line in self.server.log if all(word in line for word in words)]

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for what nobody tells, one event-loop turn at a time."""
        async with asyncio.timeout(SECONDS):
            while not reached():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)


@asynccontextmanager
async def isolating(directory: Path, *arguments: str) -> AsyncIterator[Subject]:
    pipe = HistoryPipe(directory / "history")
    flags = ("--isolate", "process", "--env", "synthetic", "--env", HARMFUL, "--hook", HOOK, *QUICK_STOP)
    try:
        async with (
            serving("env_worker", *flags, *arguments, variables=pipe.variables) as server,
            StubClient(server.address, pipe.history) as client,
        ):
            await client.until_serving()
            yield Subject(server, client, pipe)
    finally:
        pipe.close()


@pytest.fixture(scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    """One for all tests of this module; at its end the oracle judges all of its runs."""
    async with isolating(tmp_path_factory.mktemp("isolate"), "--max-concurrent", "3") as subject:
        await subject.client.run(SMALL, environment="synthetic")
        await subject.run(["trace"])
        # The processes of these two runs end by themselves: then the spares of both environments are left.
        await subject.until(lambda: subject.present()[:2] == (2, 0))
        subject.at_first = subject.present()
        yield subject
        history = await subject.pipe.at_rest(subject.client.runs)
        oracle.promises_hold(history, asked=subject.client.asked)


def infos(outcome: Outcome) -> dict[str, Any]:
    """The info of the first trace."""
    return {key: json.loads(text) for key, text in outcome.episode.traces[0].info_json.items()}


async def test_an_episode_streams_turn_by_turn_and_is_kept_with_its_arrays(
    worker: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    run = worker.start(["trace"], ["wait", str(gate.path)], ["everything"])
    nodes = []
    while not nodes:  # the opening may come before it
        nodes = [node for delta in (await run.next()).deltas for node in delta.append.nodes]
    assert nodes[0].message.content[0].text == "before"
    gate.open()
    outcome = await run.finish()
    assert outcome.code == "OK", outcome
    assert [trace.header.agent for trace in outcome.episode.traces] == ["agent", "solver", "judge"]
    kept = await worker.pipe.seen(run.run, KeepBegan)
    assert isinstance(kept, KeepBegan)
    assert kept.array_bytes > 40_000 * 8
    assert worker.logged(f"run={run.run[:8]}", "this must not look like a frame")


async def test_what_it_prints_is_in_the_log_with_its_run(worker: Subject) -> None:
    outcome = await worker.run(["trace"], ["print", "good\nmorning"])
    assert outcome.code == "OK"
    for words in (("good",), ("morning",), ("to stderr: good",)):
        await worker.until(lambda words=words: bool(worker.logged(f"run={outcome.run[:8]}", *words)))


async def test_a_bad_task_and_a_failure_before_the_first_trace_are_told_as_what_they_are(
    worker: Subject,
) -> None:
    invalid = await worker.client.run({"do": 7}, environment="harmful")
    assert (invalid.code, invalid.reason) == ("INVALID_ARGUMENT", "INVALID_TASK")
    assert "task key 'do' must be a list" in invalid.message
    invalid = await worker.run(["invalid", "no such thing"])
    assert (invalid.reason, invalid.message) == ("INVALID_TASK", "no such thing")
    failed = await worker.run(["raise", "no data set"])
    assert (failed.code, failed.reason) == ("INTERNAL", "ENVIRONMENT_FAILED")
    assert "HarmfulFailureError" in failed.message
    assert "no data set" in failed.message
    assert worker.logged("in _raise") or worker.logged("HarmfulFailureError: no data set")


async def test_a_failure_later_is_an_episode_with_its_own_traceback(worker: Subject) -> None:
    outcome = await worker.run(["trace"], ["raise", "broken tool"])
    head = outcome.episode.head
    assert (outcome.code, head.ok, len(head.errors)) == ("OK", False, 1)
    error = head.errors[0]
    assert (error.type, error.message, error.phase) == ("HarmfulFailureError", "broken tool", "environment")
    assert "harmful_environment.py" in error.traceback
    assert "in _raise" in error.traceback


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (["segfault"], ["signal 11 (SIGSEGV)", "in _segfault"]),
        (["exit", 7], ["exit code 7", "last words"]),
        (["kill"], ["signal 9 (SIGKILL)", "memory", "last words"]),
        (["close"], ["ended itself: "]),
    ],
)
async def test_a_process_that_dies_fails_its_run_and_says_how(
    worker: Subject, step: list[Any], words: list[str]
) -> None:
    early, late = await asyncio.gather(
        worker.run(["print", "last words"], step), worker.run(["trace"], ["print", "last words"], step)
    )
    assert (early.code, early.reason) == ("INTERNAL", "ENVIRONMENT_FAILED")
    assert (late.code, late.episode.head.ok) == ("OK", False)
    error = late.episode.head.errors[0]
    assert error.type == "EnvironmentDiedError"
    assert len(late.episode.traces[0].nodes) == 1, "what it wrote right before is known"
    for word in words:
        assert word in error.message
        assert word in early.message


async def test_a_child_that_it_forks_does_not_write_into_its_episode(worker: Subject) -> None:
    outcome = await worker.run(["trace"], ["fork"], ["print", "after the fork"])
    assert (outcome.code, outcome.episode.head.ok, infos(outcome)) == ("OK", True, {})


async def test_a_cancelled_environment_may_clean_up(worker: Subject, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = worker.start(["trace"], ["sleep", str(mark)])
    await run.next()
    assert await worker.client.cancel(run.run) == "ABORTED"
    assert (await run.finish()).reason == "CANCEL_REQUESTED"
    await worker.until(lambda: mark.exists() and bool(mark.read_text()))
    pid = int(mark.read_text())
    await worker.until(lambda: not alive(pid))


async def test_at_its_deadline_too(worker: Subject, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    outcome = await worker.start(["trace"], ["sleep", str(mark)], timeout=0.5).finish()
    assert outcome.code == "DEADLINE_EXCEEDED"
    await worker.until(lambda: mark.exists() and bool(mark.read_text()))


async def test_what_holds_the_interpreter_or_swallows_cancellation_holds_up_nobody(
    worker: Subject,
) -> None:
    """It takes the places of the worker but one, and gives them back when its processes are killed."""
    runs = [worker.start(["trace"], ["pids"], [name], timeout=None) for name in ("hold", "stubborn")]
    pids = []
    for run in runs:
        found: list[int] = []
        while not found:
            for delta in (await run.next()).deltas:
                if text := delta.append.info_json.get("pids"):
                    found = json.loads(text)
        pids += found
    assert (await worker.client.run(SMALL, environment="synthetic")).code == "OK"
    for run in runs:
        assert await worker.client.cancel(run.run) == "ABORTED"
        assert (await asyncio.wait_for(run.finish(), SECONDS)).reason == "CANCEL_REQUESTED"
    assert (await worker.client.describe()).ready_workers == 1
    more = [worker.client.run(SMALL, environment="synthetic") for _ in range(3)]
    assert [outcome.code for outcome in await asyncio.gather(*more)] == ["OK"] * 3
    await worker.until(lambda: not any(map(alive, pids)))
    await worker.until(
        lambda: len(worker.logged("has not ended 4.5 s after", "so its process is killed")) == 2
    )


async def test_after_fifty_runs_nothing_is_left_over(worker: Subject) -> None:
    """Those of the tests above among them."""
    runs = [worker.client.run(SMALL, environment="synthetic") for _ in range(50 - len(worker.client.runs))]
    assert Counter(outcome.code for outcome in await asyncio.gather(*runs)) in ({"OK": len(runs)}, {})
    # Of what is at_first some may still have been closing.
    await worker.until(
        lambda: all(now <= first for now, first in zip(worker.present(), worker.at_first, strict=True))
    )


async def test_a_worker_that_is_killed_takes_everything_with_it(tmp_path: Path) -> None:
    async with isolating(tmp_path) as subject:
        run = subject.start(["trace"], ["pids"], ["hold"], timeout=None)
        while not any("pids" in delta.append.info_json for delta in (await run.next()).deltas):
            pass
        below = descendants(subject.server.pid)
        assert len(below) >= 3, "the environment, what it started, the spare"
        os.kill(subject.server.pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            while any(map(alive, below)):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)


async def test_sigterm_ends_the_environments_with_the_worker(tmp_path: Path) -> None:
    """Leaving `isolating` checks that no process is left."""
    mark = tmp_path / "mark"
    async with isolating(tmp_path) as subject:
        run = subject.start(["trace"], ["pids"], ["sleep", str(mark)], timeout=None)
        await run.next()
        subject.server.process.send_signal(signal.SIGTERM)
        assert (await run.finish()).reason == "WORKER_LOST"
        await asyncio.wait_for(subject.server.process.wait(), SECONDS)
    assert mark.exists(), "it was told, and had the time to clean up"


def zombies(pid: int) -> int:
    """How many children of `pid` have ended and were not reaped."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found += state == "Z" and int(parent) == pid
    return found

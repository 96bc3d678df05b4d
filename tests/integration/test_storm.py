"""Thousands of runs that are cancelled, dropped, late and killed around the moment of their reply."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.helpers import oracle
from tests.helpers.history import (
    Asked,
    CancelAnswered,
    CancelSent,
    ConfirmSent,
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    Ended,
    History,
    KeepBegan,
    Returned,
    SessionLost,
)
from tests.helpers.pool_watch import counters_add_up, watcher
from tests.helpers.pools import ROOT, Subject, broker_subject, worker_subject
from tests.helpers.snapshot import Snapshot
from tests.helpers.stub_client import StubClient
from tests.helpers.stub_session import StubSession

if TYPE_CHECKING:
    from pathlib import Path

SEED_VARIABLE = "ENVTRIO_STORM_SEED"
LOST_SECONDS = 10.0
"""Within which a killed client's runs must be taken back: the grace, and room for a busy machine."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A client process. `killed_after` so many runs by SIGKILL; None: it lives to its end."""

    kind: str
    runs: int
    killed_after: int | None = None


CALLERS = (
    Caller("async", 400),
    Caller("async", 400),
    Caller("sync", 200),
    Caller("stub", 150),
    Caller("stub-lane", 150),
    Caller("bare", 100),
    Caller("bare-lane", 100),
    Caller("async", 1000, killed_after=60),
    Caller("async", 1000, killed_after=120),
    Caller("stub", 1000, killed_after=60),
    Caller("stub-lane", 1000, killed_after=120),
)


async def play(pool: Subject, number: int, caller: Caller, seed: int) -> None:
    """One client process, from its start to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.helpers.storm_client", caller.kind, pool.address),
        *("--runs", str(caller.runs), "--seed", str(seed), "--number", str(number)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **pool.pipe.variables, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        done = 0
        while await process.stdout.readline():
            done += 1
            if done == caller.killed_after:
                process.kill()
        assert await process.wait() == (0 if caller.killed_after is None else -9)
        assert done >= (caller.killed_after or caller.runs)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def settled(pool: Subject, runs: list[str]) -> None:
    """Ask what became of these runs. All was decided before, so that nothing is discarded now."""
    history = pool.pipe.history
    async with StubClient(pool.address, history) as client:
        limit = asyncio.Semaphore(32)

        async def ask(run: str) -> None:
            async with limit:
                outcome = await client.cancel(run)
            if outcome == "REMEMBERED" and history.of(run, KeepBegan):
                raise oracle.GuaranteeBroken(f"run {run[:8]} was kept, and is unknown now")

        await asyncio.gather(*map(ask, runs))


def bury(history: History, run: str) -> None:
    """Note that the caller of `run` was killed, and saw neither the status nor the answers that were due."""
    if not history.of(run, Ended):
        history.note(Ended, run, code="KILLED")
    history.note(SessionLost, run)
    for _ in range(len(history.of(run, CancelSent)) - len(history.of(run, CancelAnswered))):
        history.note(CancelAnswered, run, outcome="KILLED")


async def storm(pool: Subject, seed: int) -> None:
    history = pool.pipe.history
    await asyncio.gather(*(play(pool, number, caller, seed) for number, caller in enumerate(CALLERS)))

    killed = {f"{number:02x}" for number, caller in enumerate(CALLERS) if caller.killed_after is not None}
    runs = [run for run in history.runs() if history.of(run, Asked)]
    for run in runs:
        if run[:2] in killed:
            bury(history, run)
    # A killed client's runs are nobody's now, and what has failed nobody wants. Where it was never confirmed,
    # it is taken back without being asked for.
    orphans = [run for run in runs if run[:2] in killed and not history.of(run, Returned)]
    failed = [run for run in runs if run[:2] not in killed and history.of(run, Ended)[0].code != "OK"]
    for run in orphans + failed:
        if history.of(run, KeepBegan) and not history.of(run, ConfirmSent):
            await pool.pipe.seen(run, DiscardReturned, DiscardRaised, timeout=LOST_SECONDS)
    await settled(pool, orphans + failed)

    story = await pool.pipe.at_rest(runs)
    oracle.contract_holds(story)
    lived = [run for run in runs if run[:2] not in killed]
    oracle.outcomes_add_up(story.only(lived), sum(c.runs for c in CALLERS if c.killed_after is None))
    # It was a storm, and not a calm: every kind of end is there.
    ends = {end.code for run in lived for end in story.of(run, Ended)}
    assert ends >= {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"}
    outcomes = {answer.outcome for run in lived for answer in story.of(run, CancelAnswered)}
    assert outcomes >= {"ABORTED", "DISCARDED", "TOO_LATE"}


async def counted(pool: Subject) -> None:
    """The broker's own counts of the storm: they add up, and nothing that a caller got is missing."""
    history = pool.pipe.history
    asked = [run for run in history.runs() if history.of(run, Asked)]
    replied = sum(end.code == "OK" for run in asked for end in history.of(run, Ended))
    async with watcher(pool.address) as watching:
        view = await watching.watch().until(lambda view: not any(w.running for w in view.workers))
        counters_add_up(view)
        # A run that its caller dropped may not have reached the broker, a reply not the caller.
        assert replied <= view.counters["replied"] <= view.counters["runs"] <= len(asked)
        assert view.queued_runs == 0


async def test_a_storm(tmp_path: Path) -> None:
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(2**32))
    before = Snapshot.take()
    try:
        arguments = ("--workers", "4", "--session-grace-seconds", "0.5", "--log-level", "warning")
        async with broker_subject(tmp_path, *arguments) as pool:
            await storm(pool, seed)
            await counted(pool)
    except BaseException as error:
        error.add_note(f"{SEED_VARIABLE}={seed} plays the same storm")
        raise
    oracle.nothing_left_behind(before, Snapshot.take())


@pytest.mark.parametrize("subject", [worker_subject, broker_subject])
async def test_windows_that_expire(subject: type, tmp_path: Path) -> None:
    """Nobody confirms these runs, and nobody cancels them: they are delivered when their window is over."""
    # The server leaves when all windows are closed.
    arguments = ("--late-cancel-seconds", "0.3", "--linger-seconds", "20", "--session-grace-seconds", "0.1")
    async with subject(tmp_path, *arguments) as pool:
        history: History = pool.pipe.history
        async with StubClient(pool.address, history) as client:
            session = StubSession(client.stub, history)
            await session.open()
            belonging = (
                "",
                "f" * 32,
                session.id,
            )  # to none, to one that was never opened, to one that leaves
            for outcome in await asyncio.gather(
                *(client.run({"turns": 1}, session_id=belonging[number % 3]) for number in range(30))
            ):
                assert outcome.code == "OK"
            assert await session.goodbye() == "OK"
            # Some are contested at the moment of expiry, by a late cancel.
            runs = client.runs
            await asyncio.sleep(0.28)
            await asyncio.gather(*(client.cancel(run) for run in runs[:6]))
    story = await pool.pipe.at_rest(runs)
    oracle.contract_holds(story)
    assert not any(story.of(run, DiscardBegan) for run in runs[6:])

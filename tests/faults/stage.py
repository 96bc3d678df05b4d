"""A pool in which one run is at each moment of its life, ready for a fault; and what each of them met."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.helpers import oracle
from tests.helpers.fault_matrix import record
from tests.helpers.gate import Gate
from tests.helpers.history import (
    CancelAnswered,
    ConfirmAnswered,
    DiscardBegan,
    Ended,
    EnvironmentBegan,
    KeepBegan,
    Returned,
    Uncertain,
)
from tests.helpers.killable_pool import ClientProcess, KillablePool, leases
from tests.helpers.pool_watch import watcher
from tests.helpers.pools import SCRIPTED
from tests.helpers.stub_client import OpenRun, StubClient, new_id

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.history import History
    from tests.helpers.killable import Killable
    from tests.helpers.stub_client import Transport

AIM: Final = f"aim={SCRIPTED.partition('=')[2]}"
TARGET_SLOTS: Final = 2
BYSTANDER: Final = ("--env", SCRIPTED, "--env", AIM, "--max-concurrent", "1")
TARGET: Final = ("--env", AIM, "--max-concurrent", str(TARGET_SLOTS))
PROMISED_SECONDS: Final = 5.0
"""Within which the runs of a lost worker fail, and a pool takes new runs again."""
NANO: Final = 10**9

QUEUED, RUNNING, KEEPING = "waits in the queue", "runs", "in keep"
HELD, BARE, CONFIRMED, BESIDE = (
    "replied, not confirmed",
    "replied, no session",
    "confirmed",
    "on another worker",
)
AFTERWARDS = "afterwards"
SHORT: Final = [["trace"], ["say", 5]]
_KNOWN: Final = frozenset({"ABORTED", "DISCARDED", "TOO_LATE", "ABORTED WORKER_LOST", "TOO_LATE WORKER_LOST"})
_NOTHING_OF_IT: Final = tuple(["never begun", f"cancel `{answer}`"] for answer in ("ABORTED", "REMEMBERED"))


@dataclass
class Cast:
    """The runs of one scene, by moment; what holds them up; the worker that has all but the last."""

    runs: dict[str, str]
    running: Gate
    keeping: Gate
    beside: Gate
    bystander: OpenRun
    pid: int
    lease: tuple[str, str]
    """Its instance and lease, 8 digits each."""


class Stage:
    """Plays scenes in one pool, and mends the pool between them.

    Args:
        local: whether the worker that faults aim at is the broker's own.

    Attributes:
        transport: how the other caller's runs are carried. Those of `client` are in a session.
    """

    def __init__(self, pool: KillablePool, directory: Path, *, local: bool) -> None:
        self.pool: Final = pool
        self.local: Final = local
        self.transport: Transport = "session" if local else "run"
        self._directory: Final = directory
        self._gates: Final[list[Gate]] = []
        self._client: ClientProcess | None = None
        self._stub: StubClient | None = None

    @property
    def history(self) -> History:
        """Of all scenes."""
        return self.pool.pipe.history

    @property
    def target(self) -> Killable:
        """Whose log tells of the target's leases."""
        return self.pool.broker if self.local else self.pool.workers["target"]

    @property
    def client(self) -> ClientProcess:
        """The client whose runs they are."""
        assert self._client is not None
        return self._client

    @property
    def stub(self) -> StubClient:
        """Another caller, in this process."""
        assert self._stub is not None
        return self._stub

    async def ready(self) -> None:
        """Start what does not run, and let go whatever a scene that failed has held up."""
        self._open_gates()
        if not self.pool.broker.running:
            await self.pool.start()
        for name, arguments in (("bystander", BYSTANDER), ("target", TARGET)):
            missing = name not in self.pool.workers or not self.pool.workers[name].running
            if missing and not (self.local and name == "target"):
                await self.pool.join(name, *arguments)
        if self._client is None or not self._client.running:
            self._client = await self.pool.client()
        await self.renew_stub()

    async def renew_stub(self) -> None:
        """Connect anew: a channel whose server was away waits for long before it tries again."""
        if self._stub is not None:
            await self._stub.close()
        self._stub = StubClient(self.pool.address, self.history, self.transport)

    async def close(self) -> None:
        """Let everything through."""
        self._open_gates()
        if self._stub is not None:
            await self._stub.close()

    async def begin(self, *, wait_seconds: float = 60.0, **fields: Any) -> Cast:
        """One run at each moment. `fields` go to those that are not over yet; one that waits does so for at
        most `wait_seconds`."""
        pipe, client = self.pool.pipe, self.client
        beside, running, keeping = self._gate(), self._gate(), self._gate()
        bystander = self.stub.start(
            {"script": [*SHORT, ["wait", str(beside.path)], ["say", 1]]}, environment="scripted"
        )
        await bystander.next()  # its worker is full

        runs = {moment: new_id() for moment in (CONFIRMED, HELD, BARE, RUNNING, KEEPING, QUEUED)}
        short = {"script": SHORT}
        env = {"env": "aim"}
        client.tell(run=runs[CONFIRMED], task=short, fields=env)
        await pipe.seen(runs[CONFIRMED], Returned)
        client.tell(run=runs[HELD], task=short, hold=True, fields={**env, **fields})
        await client.said(f"^held {runs[HELD]}")
        client.tell(bare=runs[BARE], task=short, fields={"environment": "aim"})
        await pipe.seen(runs[BARE], Ended)
        waiting = {"script": [*SHORT, ["wait", str(running.path)], ["say", 1]]}
        client.tell(run=runs[RUNNING], task=waiting, fields={**env, **fields})
        await client.said(f"^delta {runs[RUNNING]}")
        words = f"gate={keeping.path}"
        client.tell(run=runs[KEEPING], task=short, fields={**env, **fields, "group_id": words})
        kept = await pipe.seen(runs[KEEPING], KeepBegan)
        assert isinstance(kept, KeepBegan)
        client.tell(run=runs[QUEUED], task=short, fields={**env, **fields, "timeout": wait_seconds})
        await until_queued(self.pool.address, 1)
        assert not self.history.of(runs[QUEUED], EnvironmentBegan)
        runs[BESIDE] = bystander.run
        return Cast(runs, running, keeping, beside, bystander, kept.pid, leases(self.target)[-1])

    async def ended(self, cast: Cast, *moments: str) -> None:
        """Wait until the callers of these runs have their outcomes."""
        for moment in moments:
            await self.pool.pipe.seen(cast.runs[moment], Ended)

    async def confirm(self, cast: Cast) -> None:
        """Let the held confirmation go, and wait for what it comes to."""
        self.client.tell(confirm=cast.runs[HELD])
        await self.ended(cast, HELD)

    async def go_on(self, cast: Cast) -> None:
        """Let the bystander's run end well, and with its slot whatever waits."""
        cast.beside.open()
        assert (await cast.bystander.finish()).code == "OK"

    async def takes_runs(self, since: int, *, at_once: int = TARGET_SLOTS + 1) -> None:
        """So many new runs go on at once, within the promised time after `since` (monotonic nanoseconds)."""
        gate = self._gate()
        task = {"script": [*SHORT, ["wait", str(gate.path)]]}
        runs = [self.stub.start(task, environment="aim") for _ in range(at_once)]
        await asyncio.gather(*(run.next() for run in runs))
        seconds = (time.monotonic_ns() - since) / NANO
        assert seconds < PROMISED_SECONDS, f"{at_once} new runs took {seconds:.1f} s after the fault was over"
        gate.open(at_once)
        assert {(await run.finish()).code for run in runs} == {"OK"}
        for run in runs:
            await self.stub.cancel(run.run)

    async def cancel_all(self, cast: Cast) -> None:
        """A Cancel for every run, now that all is over."""
        for run in cast.runs.values():
            await self.stub.cancel(run)

    def lost(self, cast: Cast, since: int, *moments: str) -> None:
        """These failed in time, by a status that names the worker."""
        for moment in moments:
            (end,) = self.history.of(cast.runs[moment], Ended)
            assert (end.code, end.reason) == ("UNAVAILABLE", "WORKER_LOST"), (moment, end)
            assert cast.lease[0] in end.message, end.message
            assert end.seq - since < PROMISED_SECONDS * NANO, f"{moment}: {(end.seq - since) / NANO:.1f} s"

    async def close_scene(self, fault: str, cast: Cast, afterwards: str) -> None:
        """Judge the history, and record what each run met. All were cancelled at last."""
        cast.keeping.open()
        story = await self.pool.pipe.at_rest([*cast.runs.values()])
        oracle.contract_holds(story, asked=len(cast.runs))
        for moment, run in cast.runs.items():
            record(fault, moment, outcome(story, run))
        record(fault, AFTERWARDS, afterwards)

    def stop(self, pid: int) -> None:
        """SIGSTOP."""
        os.kill(pid, signal.SIGSTOP)

    def go(self, pid: int) -> None:
        """SIGCONT."""
        os.kill(pid, signal.SIGCONT)

    def _open_gates(self) -> None:
        while self._gates:
            self._gates.pop().close()

    def _gate(self) -> Gate:
        gate = Gate(self._directory / f"gate-{new_id()}")
        self._gates.append(gate)
        return gate


async def until_queued(address: str, runs: int) -> None:
    """Wait until so many runs wait at the broker."""
    async with asyncio.timeout(PROMISED_SECONDS), watcher(address) as pool:
        # A new watch has a view at once, where an old one's may be a second late.
        while (await (watch := pool.watch()).next()).queued_runs != runs:
            watch.cancel()


def outcome(story: History, run: str) -> str:
    """What the run's caller, its hook and the last Cancel met, in words."""
    (end,) = story.of(run, Ended)
    heard = f"`{f'{end.code} {end.reason}'.strip()}`" if end.code != "KILLED" else "nobody is there to hear"
    if story.of(run, Uncertain):
        heard += ", the episode with it, as uncertain"
    parts = [heard]
    if confirms := story.of(run, ConfirmAnswered):
        heard_of = confirms[-1].outcome
        parts.append("confirmed" if heard_of == "CONFIRMED" else f"confirmation `{heard_of}`")
    if story.of(run, DiscardBegan):
        parts.append("kept, discarded once")
    elif story.kept_died(run):
        parts.append("kept, died with its worker")
    elif story.of(run, KeepBegan):
        parts.append("kept")
    elif story.of(run, EnvironmentBegan):
        parts.append("never kept")
    else:
        parts.append("never begun")
    if cancels := [answer.outcome for answer in story.of(run, CancelAnswered)]:
        # Who has said what became of it may have forgotten it later.
        known = [answer for answer in cancels if answer in _KNOWN] or cancels
        parts.append(f"cancel `{known[-1].strip()}`")
    if end.code == "DEADLINE_EXCEEDED":
        parts[0] = "`DEADLINE_EXCEEDED`"  # who sees it first, client or broker, gives the reason
    if end.code in ("DEADLINE_EXCEEDED", "KILLED") and parts[1:] in _NOTHING_OF_IT:
        # Nobody took it back: it left the queue by itself, or when the slots of the others were free.
        parts[2] = "cancel `ABORTED` or `REMEMBERED`"
    return "; ".join(parts)


def afterwards(before: tuple[str, str], after: tuple[str, str] | None) -> str:
    """What became of the worker that had the runs."""
    if after is None:
        return "the worker is gone"
    if after == before:
        return "same instance, same lease"
    return "same instance, new lease" if after[0] == before[0] else "a new worker in its place"

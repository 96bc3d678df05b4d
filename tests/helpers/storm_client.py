"""A client process for storms: many runs at once, most of them disturbed around the moment of their reply.

    python -m tests.helpers.storm_client KIND ADDRESS --runs N --seed S --number K

Kinds are "async" (EnvClient), "sync" (SyncEnvClient), "stub" (the plain stub with a session) and "bare" (the
plain stub without one); "stub-lane" and "bare-lane" have their runs carried by one stream more, that of a
session which no run names. Its records go where the hooks' go. A run's id begins with the client's number,
two digits. After each run it prints a line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from env_client import DeliveryUncertainError, EnvClient, EnvError, SyncEnvClient
from tests.helpers.history import Asked, CancelAnswered, CancelSent, Ended, History, Returned, Uncertain
from tests.helpers.history_pipe import HistoryWriter
from tests.helpers.recorded_client import RecordedSession
from tests.helpers.recorded_lane import record_lane
from tests.helpers.stub_client import StubClient
from tests.helpers.stub_session import StubSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tests.helpers.stub_client import Transport

TASK = {"turns": 2, "tokens_per_turn": 8, "layers": 1}
TIMEOUT_SECONDS = 30.0
WAYS = {
    "async": ("plain", "plain", "cancel", "task", "deadline", "drop", "callback", "nudge"),
    "sync": ("plain", "plain", "cancel", "deadline", "drop", "callback", "nudge"),
    "stub": ("confirm", "confirm", "silent", "contest", "cancel", "drop", "deadline"),
    "bare": ("plain", "cancel", "late", "drop", "deadline"),
}
WAYS |= {f"{kind}-lane": WAYS[kind] for kind in ("stub", "bare")}
"""What happens to a run: a Cancel by another caller at a moment ("cancel"), with its n-th delta ("nudge"),
after its reply ("late"), or beside its confirmation ("contest"); the caller's task cancelled ("task"); a
deadline; a stream left after n deltas ("drop"); a callback that raises at the n-th delta."""
HOOKS = ("",) * 12 + ("slow=15", "slow=40", "raise-in-keep", "raise-in-discard", "slow=10 raise-in-discard")


def transport_of(kind: str) -> Transport:
    """How a client of this kind carries its runs."""
    return "session" if kind.endswith("-lane") else "run"


class StormError(Exception):
    """What the callback raises."""


@dataclass(frozen=True, slots=True)
class Ride:
    """The plan of one run. `moment` is in durations of an undisturbed run, `deltas` counts messages."""

    run: str
    way: str
    moment: float
    deltas: int
    hook: str


def rides(kind: str, number: int, seed: int, runs: int) -> list[Ride]:
    """The same plans for the same arguments."""
    dice = random.Random(f"{seed} {number}")
    return [
        Ride(
            run=f"{number:02x}{dice.getrandbits(120):030x}",
            way=dice.choice(WAYS[kind]),
            moment=dice.uniform(0.0, 0.4) if dice.random() < 0.2 else dice.gauss(1.0, 0.25),
            deltas=dice.randint(1, 4),
            hook=dice.choice(HOOKS),
        )
        for _ in range(runs)
    ]


class Pace:
    """How long an undisturbed run takes at present, in seconds."""

    def __init__(self) -> None:
        self._seconds = 0.05

    def moment(self, ride: Ride) -> float:
        """When to disturb the ride, in seconds from its start."""
        return max(0.001, ride.moment * self._seconds)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Learn from a run that ends well."""
        began = time.monotonic()
        yield
        self._seconds += 0.1 * (time.monotonic() - began - self._seconds)


@contextlib.contextmanager
def recorded(history: History, run: str) -> Iterator[None]:
    """Note that a client was asked for `run`, and how it ended. Its errors end here."""
    history.note(Asked, run)
    try:
        yield
    except EnvError as error:
        if isinstance(error, DeliveryUncertainError):
            history.note(Uncertain, run)
        history.note(Ended, run, code=error.code, reason=error.reason)
    except (StormError, asyncio.CancelledError):
        history.note(Ended, run, code="CANCELLED")
    else:
        history.note(Ended, run, code="OK")
        history.note(Returned, run)


class AsyncRider:
    """Rides with EnvClient; other callers are played by `stub`."""

    def __init__(self, client: EnvClient, stub: StubClient, history: History) -> None:
        self._client, self._stub, self._history = client, stub, history
        self._pace = Pace()

    async def ride(self, ride: Ride) -> None:
        """One run."""
        moment = self._pace.moment(ride)
        async with asyncio.TaskGroup() as others:
            if ride.way == "cancel":
                others.create_task(_later(moment, lambda: self._stub.cancel(ride.run)))
            task = asyncio.create_task(self._run(ride, moment, others))
            if ride.way == "task":
                asyncio.get_running_loop().call_later(moment, task.cancel)
            await task

    async def _run(self, ride: Ride, moment: float, others: asyncio.TaskGroup) -> None:
        seen = 0

        def see(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == ride.deltas and ride.way == "callback":
                raise StormError
            if seen == ride.deltas and ride.way == "nudge":
                others.create_task(self._stub.cancel(ride.run))

        arguments: dict[str, Any] = {"request_id": ride.run, "group_id": ride.hook}
        with recorded(self._history, ride.run):
            if ride.way == "drop":
                async with self._client.stream(TASK, **arguments) as stream:
                    for _ in range(ride.deltas):
                        await anext(stream, None)
                    raise StormError
            timeout = moment if ride.way == "deadline" else TIMEOUT_SECONDS
            with self._pace.measured():
                await self._client.run(TASK, on_delta=see, timeout=timeout, **arguments)


class SyncRider:
    """Rides with SyncEnvClient, each in a thread."""

    def __init__(self, client: SyncEnvClient, history: History) -> None:
        self._client, self._history = client, history
        self._pace = Pace()

    def ride(self, ride: Ride) -> None:
        """One run."""
        moment = self._pace.moment(ride)
        other = threading.Timer(moment if ride.way == "cancel" else 0.0, self._cancel, [ride.run])
        if ride.way == "cancel":
            other.start()
        self._run(ride, moment, other)
        if other.ident is not None:
            other.join()

    def _run(self, ride: Ride, moment: float, other: threading.Timer) -> None:
        seen = 0

        def see(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == ride.deltas and ride.way == "callback":
                raise StormError
            if seen == ride.deltas and ride.way == "nudge":
                other.start()

        arguments: dict[str, Any] = {"request_id": ride.run, "group_id": ride.hook}
        with recorded(self._history, ride.run):
            if ride.way == "drop":
                with self._client.stream(TASK, **arguments) as stream:
                    for _ in range(ride.deltas):
                        next(stream, None)
                    raise StormError
            timeout = moment if ride.way == "deadline" else TIMEOUT_SECONDS
            with self._pace.measured():
                self._client.run(TASK, on_delta=see, timeout=timeout, **arguments)

    def _cancel(self, run: str) -> None:
        self._history.note(CancelSent, run)
        try:
            outcome = self._client.cancel(run)
        except EnvError as error:
            outcome = error.code
        self._history.note(CancelAnswered, run, outcome=outcome)


class StubRider:
    """Rides on the plain stub, and keeps its rules: what it left, or lost behind the reply, it cancels."""

    def __init__(self, stub: StubClient, session: StubSession | None) -> None:
        self._stub, self._session = stub, session
        self._pace = Pace()

    async def ride(self, ride: Ride) -> None:
        """One run."""
        moment = self._pace.moment(ride)
        session_id = self._session.id if self._session else ""
        timeout = moment if ride.way == "deadline" else TIMEOUT_SECONDS
        async with asyncio.TaskGroup() as others:
            if ride.way == "cancel":
                others.create_task(_later(moment, lambda: self._stub.cancel(ride.run)))
            open_run = self._stub.start(
                TASK, timeout=timeout, request_id=ride.run, session_id=session_id, group_id=ride.hook
            )
            if ride.way == "drop":
                with contextlib.suppress(Exception):
                    for _ in range(ride.deltas):
                        await open_run.next()
                outcome = await open_run.drop()
            else:
                with self._pace.measured():
                    outcome = await open_run.finish()
            if outcome.code != "OK":
                await self._stub.cancel(ride.run)
                return
            if ride.way in ("late", "contest"):
                others.create_task(self._stub.cancel(ride.run))
            if self._session is not None and ride.way != "silent":
                await self._session.confirm(ride.run)


async def _later(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    await asyncio.sleep(seconds)
    await work()


async def _all(ride: Callable[[Ride], Awaitable[None]], plans: Sequence[Ride], concurrency: int) -> None:
    waiting = iter(plans)

    async def lane() -> None:
        for plan in waiting:
            await ride(plan)
            print(plan.run, flush=True)

    async with asyncio.TaskGroup() as lanes:
        for _ in range(concurrency):
            lanes.create_task(lane())


async def _main(arguments: argparse.Namespace) -> None:
    kind, address, concurrency = arguments.kind, arguments.address, arguments.concurrency
    plans = rides(kind, arguments.number, arguments.seed, arguments.runs)
    history = HistoryWriter()
    async with StubClient(address, history, transport_of(kind)) as stub:
        if kind == "async":
            session = RecordedSession(address, history)
            async with EnvClient(address, env="synthetic", session=session) as client:
                record_lane(client, history)
                await _all(AsyncRider(client, stub, history).ride, plans, concurrency)
        elif kind == "sync":
            session = RecordedSession(address, history)
            with (
                SyncEnvClient(address, env="synthetic", session=session) as plain,
                ThreadPoolExecutor(concurrency) as threads,
            ):
                rider, loop = SyncRider(plain, history), asyncio.get_running_loop()
                await _all(lambda plan: loop.run_in_executor(threads, rider.ride, plan), plans, concurrency)
        elif kind in ("stub", "stub-lane"):
            stream = StubSession(stub.stub, history)
            await stream.open()
            await _all(StubRider(stub, stream).ride, plans, concurrency)
            assert await stream.goodbye() == "OK"
        else:
            await _all(StubRider(stub, None).ride, plans, concurrency)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A client process for storms.")
    parser.add_argument("kind", choices=sorted(WAYS))
    parser.add_argument("address")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=16)
    asyncio.run(_main(parser.parse_args()))

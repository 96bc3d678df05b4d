"""The broker's own workers together: growing, leaving, being replaced, and what their ends say."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from env_broker.exit_code import EXIT_ARRAYS_LOST, EXIT_RUNS_ENDED, EXIT_UNFINISHED
from env_broker.leftovers import MARK_VARIABLE, kill_leftovers, stopped
from env_broker.patience import Patience
from env_broker.supervisor import Bounds, Supervisor
from tests.helpers.clock import FakeClock
from tests.helpers.snapshot import alive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATIENCE = 20
NOBODY = 2**31 - 1
"""More than any pid, so nobody's process group."""
FOREVER = "import signal; signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"
    "while True: signal.pause()"
)
SLOT_1_FAILS = (
    "import os, signal, sys\n"
    "fails = os.environ['ENV_WORKER_LOCAL_SLOT'].startswith('1:')\n"
    "sys.exit('no such environment: x') if fails else signal.pause()"
)
EXITS = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
    "print('up', flush=True)\n"
    "while True: signal.pause()"
)


class Kept:
    """A supervisor, and what it said."""

    def __init__(self, count: int, code: str, bounds: Bounds) -> None:
        self.clock = FakeClock()
        self.ended: list[tuple[str, str]] = []
        self.drained: list[str] = []
        self._changed = asyncio.Event()
        self.supervisor = Supervisor(
            count,
            clock=self.clock,
            on_change=self._changed.set,
            on_ended=lambda instance, how: self.ended.append((instance, how)),
            drain=self.drained.append,
            bounds=bounds,
        )
        self.supervisor.start([sys.executable, "-c", code])

    @property
    def states(self) -> list[tuple[int, str]]:
        return [(view.slot, view.state) for view in self.supervisor.views()]

    def restarts(self, slot: int) -> int:
        return next(view.restarts for view in self.supervisor.views() if view.slot == slot)

    def pid(self, slot: int) -> int:
        return next(view.pid for view in self.supervisor.views() if view.slot == slot and view.pid)

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():  # noqa: ASYNC110  # the start of a process tells nobody
                await asyncio.sleep(0)

    async def until_up(self) -> None:
        await self.until(lambda: all(view.pid for view in self.supervisor.views()))

    def claim(self, slot: int) -> str:
        """What the process in that slot was given, to be told when it registers."""
        return self.supervisor._workers[slot]._claim

    def register(self, *slots: int) -> None:
        for slot in slots:
            assert self.supervisor.registered(self.claim(slot), f"instance-{slot}") == str(slot)

    def look(self, seconds: int, leased: tuple[str, ...] = ()) -> None:
        """So much time passes, in which the supervisor looks every second."""
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.supervisor.look(leased)


@asynccontextmanager
async def keeping(count: int, code: str = FOREVER, **bounds: float) -> AsyncIterator[Kept]:
    kept = Kept(count, code, Bounds(**{"stop": 5.0, "exit": 0.2, **bounds}))
    try:
        await kept.until_up()
        yield kept
    finally:
        for pid in kept.supervisor.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await kept.supervisor.stop()
    assert kept.supervisor.views() == []


async def test_views_tell_where_each_stands() -> None:
    async with keeping(2) as kept:
        kept.register(1)
        assert kept.states == [(0, "STARTING"), (1, "REGISTERED")]
        view = kept.supervisor.views()[1]
        assert (view.instance, view.detail, view.restarts) == ("instance-1", "", 0)
        for slot in (0, 1):
            os.kill(kept.pid(slot), signal.SIGKILL)
        await kept.until(lambda: [view.restarts for view in kept.supervisor.views()] == [1, 1])
        assert all("was killed by SIGKILL" in view.detail for view in kept.supervisor.views())
        assert kept.ended[0][0] == "instance-1"  # what never registered is known to nobody
        assert len(kept.ended) == 1
        os.kill(kept.pid(0), signal.SIGKILL)
        await kept.until(lambda: kept.states[0] == (0, "WAITING"))
        # That of slot 1 had registered before.
        assert (kept.supervisor.size, kept.supervisor.starting, kept.supervisor.failing) == (2, 2, 1)


async def test_one_that_cannot_start_is_no_burden_to_the_others() -> None:
    async with keeping(3, SLOT_1_FAILS) as kept:
        kept.register(0, 2)
        await kept.until(lambda: kept.states[1] == (1, "WAITING"))
        for times in range(1, 4):
            kept.clock.advance(60)  # they are steady
            for slot in (0, 2):
                os.kill(kept.pid(slot), signal.SIGKILL)
            await kept.until(lambda: kept.restarts(0) == kept.restarts(2) == times)  # noqa: B023
            kept.register(0, 2)
        await kept.until(lambda: "no such environment: x" in kept.supervisor.views()[1].detail)
        assert kept.supervisor.failing == 1


async def test_growth_takes_the_lowest_free_slots() -> None:
    async with keeping(1) as kept:
        kept.supervisor.grow(2)
        await kept.until_up()
        kept.register(0, 1, 2)
        assert kept.supervisor.instances == {"instance-0", "instance-1", "instance-2"}
        assert kept.supervisor.retire("instance-1")
        assert not kept.supervisor.retire("unknown")
        assert (kept.supervisor.size, kept.supervisor.leaving) == (2, 1)
        assert kept.supervisor.instances == {"instance-0", "instance-2"}
        assert kept.states[1] == (1, "LEAVING")
        kept.supervisor.grow(1)
        assert [slot for slot, _ in kept.states] == [0, 1, 2, 3]
        os.kill(kept.pid(1), signal.SIGKILL)  # one that leaves is not restarted, however it ends
        await kept.until(lambda: [slot for slot, _ in kept.states] == [0, 2, 3])
        assert "was killed by SIGKILL" in await kept.supervisor.last_words("1", "instance-1")
        assert await kept.supervisor.last_words("1", "another") == ""
        kept.supervisor.grow(1)
        assert [slot for slot, _ in kept.states] == [0, 1, 2, 3]


async def test_one_that_drains_by_itself_is_replaced_at_once_while_it_drains_on() -> None:
    async with keeping(1) as kept:
        kept.register(0)
        first = kept.pid(0)
        kept.supervisor.draining("another")
        assert kept.states == [(0, "REGISTERED")]
        kept.supervisor.draining("instance-0")
        kept.supervisor.draining("instance-0")
        await kept.until_up()
        assert kept.states == [(0, "LEAVING"), (1, "STARTING")]
        assert kept.supervisor.size == 1
        kept.register(1)
        kept.supervisor.draining("instance-1")  # at once again: the place has its backoff
        assert kept.states == [(0, "LEAVING"), (1, "LEAVING"), (2, "WAITING")]
        await kept.clock.sleepers(1)
        kept.clock.advance(0.5)
        await kept.until_up()
        assert alive(first)
        kept.register(0)  # it lost its lease, and comes back
        assert kept.drained == ["instance-0"]


async def test_a_place_is_filled_by_its_own_process_and_nobody_else() -> None:
    async with keeping(2, mute=1) as kept:
        registered = kept.supervisor.registered
        first = kept.claim(0)
        assert first != kept.claim(1)
        # A bare number, as what an environment started inherits, or a worker of a broker that was killed.
        for claim in ("0", "", ":", "0:", "0:stranger", "9" * 5_000, f"{first}x", first[1:]):
            assert registered(claim, "stranger") == ""
        assert kept.states == [(0, "STARTING"), (1, "STARTING")]
        kept.register(0, 1)
        assert registered(first, "started by an environment of it") == ""
        assert registered(first, "instance-0") == "0"  # it comes back
        kept.look(100, leased=("instance-0", "instance-1", "stranger"))
        assert kept.restarts(0) == 0
        os.kill(kept.pid(0), signal.SIGKILL)
        await kept.until(lambda: kept.restarts(0) == 1)
        assert registered(first, "instance-0") == ""  # that was the process before
        kept.register(0, 1)


async def test_a_start_that_nobody_needs_any_more_is_given_up() -> None:
    async with keeping(3, SLOT_1_FAILS) as kept:
        kept.register(0, 2)
        kept.supervisor.give_up_start()
        await kept.until(lambda: kept.supervisor.failing)
        kept.supervisor.give_up_start()
        await kept.until(lambda: [slot for slot, _ in kept.states] == [0, 2])
        assert not kept.supervisor.hopeful()


async def test_runs_wait_for_a_moment_for_what_has_just_lost_its_lease() -> None:
    async with keeping(1) as kept:
        kept.register(0)
        assert not kept.supervisor.hopeful()
        kept.supervisor.lost_lease("another")
        assert not kept.supervisor.hopeful()
        kept.supervisor.lost_lease("instance-0")
        assert kept.supervisor.hopeful()
        kept.look(1)  # its process lives: it is stopped, or cut off
        assert not kept.supervisor.hopeful()
        kept.supervisor.lost_lease("instance-0")
        kept.register(0)
        assert not kept.supervisor.hopeful()


async def test_one_that_runs_without_its_lease_is_killed_but_never_a_stopped_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with keeping(1, mute=10) as kept:
        pid = kept.pid(0)
        kept.look(100)  # it has yet to register: that may take as long as it takes
        kept.register(0)
        kept.look(100, leased=("instance-0",))
        kept.look(9)
        kept.look(1, leased=("instance-0",))
        kept.look(9)
        os.kill(pid, signal.SIGSTOP)
        await kept.until(lambda: stopped(pid))
        kept.look(1000)
        os.kill(pid, signal.SIGCONT)
        await kept.until(lambda: not stopped(pid))
        kept.look(8)
        kept.clock.advance(1000)  # it was the broker that stood still
        kept.supervisor.look(())
        assert "is killed" not in caplog.text
        kept.look(1)
        await kept.until(lambda: kept.supervisor.views()[0].restarts == 1)
        assert "--stuck-seconds" in kept.supervisor.detail()
        assert "was killed by SIGKILL" in kept.supervisor.detail()
        assert kept.supervisor.views()[0].state == "STARTING"


async def test_one_that_leaves_for_longer_than_it_may_is_killed() -> None:
    async with keeping(1, STUBBORN, stop=5, exit=1, mute=1) as kept:
        kept.register(0)
        kept.supervisor.retire("instance-0")
        pid = kept.pid(0)
        kept.look(6)
        assert kept.supervisor.leaving == 1
        os.kill(pid, signal.SIGSTOP)
        await kept.until(lambda: stopped(pid))
        kept.look(100)
        assert kept.supervisor.leaving == 0, "as long as it lasts the pool would not shrink"
        os.kill(pid, signal.SIGCONT)
        await kept.until(lambda: not stopped(pid))
        assert alive(pid)
        kept.look(2)
        await kept.until(lambda: kept.supervisor.views() == [])
        assert "longer than it may" in kept.supervisor.detail()


@pytest.mark.parametrize(
    ("code", "registered", "lost"),
    [
        (0, True, set()),
        (1, True, {EXIT_UNFINISHED}),
        (2, False, set()),
        (3, True, {EXIT_UNFINISHED}),
        (4, True, {EXIT_ARRAYS_LOST}),
        (5, True, {EXIT_RUNS_ENDED}),
        (6, True, {EXIT_RUNS_ENDED}),
        (7, True, {EXIT_UNFINISHED}),
        (7, False, set()),
    ],
)
async def test_the_exit_code_of_a_worker_says_what_the_stop_lost(
    code: int, registered: bool, lost: set[int], capfd: pytest.CaptureFixture[str]
) -> None:
    async with keeping(1, EXITS.format(code=code)) as kept:
        said = ""
        async with asyncio.timeout(PATIENCE):
            while "up" not in said:
                said += capfd.readouterr().err
                await asyncio.sleep(0)
        if registered:
            kept.register(0)
        await kept.supervisor.stop()
        assert kept.supervisor.lost == lost


async def test_what_ended_before_the_stop_is_not_its_loss_and_what_was_killed_is() -> None:
    async with keeping(2, STUBBORN, stop=0.0) as kept:
        kept.register(0, 1)
        os.kill(kept.pid(0), signal.SIGKILL)
        await kept.until(lambda: kept.supervisor.views()[0].restarts == 1)
        assert kept.supervisor.lost == frozenset()
        await kept.supervisor.stop()
        assert kept.supervisor.lost == {EXIT_UNFINISHED}
        kept.supervisor.grow(1)  # too late
        assert kept.supervisor.views() == []


async def test_one_that_drains_already_is_not_hurried_by_the_stop(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with keeping(1, EXITS.format(code=5), stop=0.2) as kept:
        said = ""
        async with asyncio.timeout(PATIENCE):
            while "up" not in said:
                said += capfd.readouterr().err
                await asyncio.sleep(0)
        kept.register(0)
        kept.supervisor.retire("instance-0")
        await kept.supervisor.stop()
        assert "was killed by SIGKILL" in kept.supervisor.detail()  # no SIGTERM came


async def test_a_second_signal_shortens_the_stop(capfd: pytest.CaptureFixture[str]) -> None:
    async with keeping(1, STUBBORN, stop=1000.0, hurried=0.1) as kept:
        said = ""
        async with asyncio.timeout(PATIENCE):
            while "up" not in said:
                said += capfd.readouterr().err
                await asyncio.sleep(0)
        stop = asyncio.create_task(kept.supervisor.stop())
        await asyncio.sleep(0)
        kept.supervisor.hurry()
        await asyncio.wait_for(stop, PATIENCE)


async def test_nothing_is_left_of_what_a_worker_started(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "new = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "bare = subprocess.Popen(['sleep', '1000'], env={})\n"
        "if (forked := os.fork()) == 0:\n"
        "    os.setsid()\n"
        "    signal.pause()\n"
        "print('left', new.pid, bare.pid, forked, flush=True)\n"
        "signal.pause()"
    )
    async with keeping(1, code) as kept:
        said = ""
        async with asyncio.timeout(PATIENCE):
            while "left" not in said:
                said += capfd.readouterr().err
                await asyncio.sleep(0)
        left = [int(word) for word in said.split()[-3:]]
        assert all(alive(pid) for pid in left)
        os.kill(kept.pid(0), signal.SIGKILL)
        await kept.until(lambda: "had left processes behind" in caplog.text)
        assert not any(alive(pid) for pid in left)
        assert all(f"{pid} " in caplog.text for pid in left)


async def test_other_processes_are_not_leftovers() -> None:
    environment = {**os.environ, MARK_VARIABLE: "another"}
    process = await asyncio.create_subprocess_exec("sleep", "1000", env=environment)
    try:
        assert kill_leftovers("mark", NOBODY) == []
        assert alive(process.pid)
        assert kill_leftovers("another", NOBODY) == [f"{process.pid} sleep"]
    finally:
        await process.wait()


@pytest.mark.parametrize(("mark", "group"), [("", NOBODY), ("mark", 0), ("mark", 1), ("mark", -1)])
def test_nothing_is_looked_for_by_what_no_worker_has(mark: str, group: int) -> None:
    with pytest.raises(ValueError, match="are not those of a worker"):
        kill_leftovers(mark, group)


def test_a_process_that_is_gone_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int) -> Any:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", gone)
    assert not stopped(1)


def test_patience_counts_only_what_is_to_blame() -> None:
    patience = Patience(3.0)
    assert not patience.over(0.0, counts=True)
    assert not patience.over(1.0, counts=True)
    assert not patience.over(2.0, counts=False)
    assert not patience.over(100.0, counts=True)  # one second of it
    patience.renew(101.0)
    assert [patience.over(101.0 + second, counts=True) for second in (1, 2, 3)] == [False, False, True]

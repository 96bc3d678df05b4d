"""The view of a pool, put together from what the parts of a broker know."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from env_broker.counters import CANCELLED, FAILED, REFUSED, Counters, outcome_of
from env_broker.local_view import LocalView
from env_broker.pool import Load, Worker
from env_broker.status import _CODES
from env_broker.tasks import Errands
from env_broker.view import LOST_SECONDS, MAX_LOST, PoolView
from tests.helpers.clock import FakeClock
from tests.helpers.pool_watch import state, states
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Awaitable


class Local:
    """The broker's own workers, by hand."""

    def __init__(self) -> None:
        self.places: list[LocalView] = []
        self.words: Awaitable[str] | None = None

    def views(self) -> list[LocalView]:
        return self.places

    async def last_words(self, slot: str, instance: str) -> str:
        return "" if self.words is None else await self.words


class Scene:
    """A view, and all that it is taken of."""

    def __init__(self) -> None:
        self.links: dict[str, Any] = {}
        self.local, self.clock, self.errands, self.now = Local(), FakeClock(), Errands(), 1_700_000_000.0
        self.dispatcher: Any = SimpleNamespace(queued=3, closed=False)
        self.view = PoolView(
            links=self.links,
            dispatcher=self.dispatcher,
            local=self.local,
            counters=Counters(),
            errands=self.errands,
            clock=self.clock,
            max_queue=8,
            bounds=(1, 7),
            wall=lambda: self.now,
        )

    def register(self, slot: str = "", **fields: Any) -> Any:
        worker = Worker(new_id(), new_id(), "a:1", frozenset(["e"]), 4, 60.0, 0.0)
        because = fields.pop("because", "")
        for name, value in fields.items():
            setattr(worker, name, value)
        link = SimpleNamespace(
            worker=worker, address="a:1", local_slot=slot,
            reachable=worker.reachable, unreachable_because=because,
        )  # fmt: skip
        self.links[worker.instance] = link
        self.view.changed()
        return link

    def lose(self, link: Any, cause: str = "its stream broke") -> None:
        del self.links[link.worker.instance]
        self.view.lost(link, cause)


@pytest.mark.parametrize(
    ("fields", "shown", "detail"),
    [
        ({}, "READY", ""),
        ({"environments": frozenset()}, "LOADING", "its environments are loading"),
        ({"reachable": False}, "LOADING", "the broker has yet to reach it"),
        ({"reachable": False, "because": "refused"}, "LOADING", "the broker cannot reach it: refused"),
        ({"draining": True, "reachable": False}, "DRAINING", "it takes no new runs"),
        ({"draining": True, "says": "drains: SIGTERM"}, "DRAINING", "it takes no new runs; drains: SIGTERM"),
        ({"says": "run 8f7e2d57 blocks the loop"}, "READY", "run 8f7e2d57 blocks the loop"),
    ],
)
async def test_where_a_registered_worker_stands(fields: dict[str, Any], shown: str, detail: str) -> None:
    scene = Scene()
    scene.register(**fields)
    [worker] = scene.view.take().workers
    assert (state(worker), worker.detail) == (shown, detail)


async def test_what_a_worker_has_and_since_when() -> None:
    scene = Scene()
    link = scene.register("2", busy=3, load=Load(running=9, open_windows=5, held_array_bytes=2**40))
    scene.now += 50
    scene.register()
    view = scene.view.take()
    worker, other = view.workers
    assert (worker.running, worker.open_windows, worker.held_array_bytes) == (3, 5, 2**40)
    assert (worker.local_slot, worker.address, worker.max_concurrent_runs) == ("2", "a:1", 4)
    assert [shown.registered_at.seconds for shown in (worker, other)] == [1_700_000_000, 1_700_000_050]
    assert (view.queued_runs, view.max_queued_runs) == (3, 8)
    assert (view.min_local_workers, view.max_local_workers) == (1, 7)
    link.worker.lease = new_id()  # it registers again
    scene.now += 50
    scene.view.changed()
    assert scene.view.take().workers[0].registered_at.seconds == 1_700_000_100


@pytest.mark.parametrize(
    ("place", "shown", "detail"),
    [
        (LocalView(0, 77, "", "STARTING", "it was started", "", 0), "STARTING", "it was started"),
        (
            LocalView(0, None, "", "WAITING", "it is started again in 8 s", "its last lines: boom", 3),
            "STARTING",
            "it is started again in 8 s; its last lines: boom",
        ),
        (LocalView(0, 77, "f" * 32, "LEAVING", "it ends", "", 0), "DRAINING", "it ends"),
        (LocalView(0, 77, "f" * 32, "REGISTERED", "it is stopped", "", 0), "LOST", "it is stopped"),
    ],
)
async def test_where_a_local_worker_stands_that_is_not_registered(
    place: LocalView, shown: str, detail: str
) -> None:
    scene = Scene()
    scene.local.places = [place]
    [worker] = scene.view.take().workers
    assert (state(worker), worker.detail, worker.local_slot) == (shown, detail, "0")
    assert (worker.instance, worker.pid) == (place.instance, place.pid or 0)


async def test_a_local_worker_is_shown_once() -> None:
    scene = Scene()
    link = scene.register("0")
    scene.local.places = [LocalView(0, 77, link.worker.instance, "REGISTERED", "it is stopped", "", 0)]
    [worker] = scene.view.take().workers
    assert (state(worker), worker.detail, worker.pid) == ("READY", "it is stopped", 77)
    scene.lose(link)
    for _ in range(2):
        [worker] = scene.view.take().workers
        assert (state(worker), worker.pid) == ("LOST", 77)
        assert worker.detail == "it was lost: its stream broke; it is stopped"
    scene.local.places = [LocalView(0, 78, "", "STARTING", "", "", 1)]
    assert states(scene.view.take()) == ["STARTING", "LOST"]
    assert scene.view.take().workers[1].pid == 0


async def test_a_lost_worker_stays_for_a_while_with_its_last_words() -> None:
    scene = Scene()
    scene.local.words = asyncio.get_running_loop().create_future()
    link = scene.register("0", busy=3, load=Load(open_windows=2, held_array_bytes=7))
    scene.lose(link)
    [worker] = scene.view.take().workers
    assert (worker.running, worker.open_windows) == (0, 0), "its runs were given up"
    assert worker.held_array_bytes == 7, "what it held by its last heartbeat: it may hold it still"
    assert worker.detail == "it was lost: its stream broke"
    secret = new_id()
    scene.local.words.set_result(f"was killed by SIGKILL; its last lines: run {secret} at x\x1b[2J")
    await scene.errands.close(5)
    [worker] = scene.view.take().workers
    assert worker.detail.startswith("it was lost: its stream broke; was killed by SIGKILL; its last lines")
    assert secret not in worker.detail
    assert f"run {secret[:8]} at x" in worker.detail
    scene.clock.advance(LOST_SECONDS - 1)
    assert states(scene.view.take()) == ["LOST"]
    scene.links[link.worker.instance] = link
    assert states(scene.view.take()) == ["READY"]
    scene.lose(link)
    scene.clock.advance(LOST_SECONDS)
    assert states(scene.view.take()) == []


async def test_a_lost_local_worker_is_shown_for_as_long_as_its_process_lives() -> None:
    scene = Scene()
    link = scene.register("0", load=Load(held_array_bytes=7))
    scene.local.places = [LocalView(0, 77, link.worker.instance, "REGISTERED", "it is stopped", "", 0)]
    scene.lose(link)
    scene.clock.advance(10 * LOST_SECONDS)
    [worker] = scene.view.take().workers
    assert (state(worker), worker.address, worker.held_array_bytes) == ("LOST", "a:1", 7)
    scene.local.places = []
    assert states(scene.view.take()) == []


async def test_what_a_lost_worker_said_last_is_shown_once() -> None:
    scene = Scene()
    scene.local.words = asyncio.get_running_loop().create_future()
    scene.lose(scene.register("0"), "worker 0 was killed by SIGKILL after 6.8 s")
    scene.local.words.set_result("worker 0 was killed by SIGKILL after 6.8 s; its last lines: up")
    await scene.errands.close(5)
    [worker] = scene.view.take().workers
    assert worker.detail == "it was lost: worker 0 was killed by SIGKILL after 6.8 s; its last lines: up"


async def test_no_more_than_so_many_lost_workers_are_shown() -> None:
    scene = Scene()
    for number in range(MAX_LOST + 5):
        scene.lose(scene.register(), f"cause {number}")
    lost = scene.view.take().workers
    assert len(lost) == MAX_LOST
    assert lost[0].detail == "it was lost: cause 5"
    scene.lose(scene.register(), "x" * 10_000)
    assert len(scene.view.take().workers[-1].detail) < 2_000


def test_every_reason_is_counted_as_something() -> None:
    assert {reason: outcome_of(reason) for reason in ("DEADLINE", "SESSION_LOST", "CANCEL_REQUESTED")} == (
        dict.fromkeys(("DEADLINE", "SESSION_LOST", "CANCEL_REQUESTED"), CANCELLED)
    )
    assert {outcome_of(reason) for reason in ("WORKER_LOST", "HOOK_FAILED", None, "A_LATER_ONE")} == {FAILED}
    ends_of_runs = {"WORKER_LOST", "INTERNAL", "MESSAGE_TOO_LARGE"}
    no_ends = {"WORKER_SILENT", "SESSION_SUPERSEDED", "LEASE_EXPIRED"}
    for reason in set(_CODES) - ends_of_runs - no_ends:
        assert outcome_of(reason) in (CANCELLED, REFUSED), reason


async def test_a_broker_that_stops_says_so() -> None:
    scene = Scene()
    assert scene.view.take().stopping == ""
    scene.dispatcher.closed = True
    assert scene.view.take().stopping == "the broker is stopping and takes no runs"

"""A round: every run is played once, what fails is said, and the gauges mean what they are called."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.versus import gauges
from benchmarks.versus.load import Order, Processes, RoundFailed, play
from benchmarks.versus.notes import ABORTED, BEGAN, ENDED, VARIABLE, Notebook, Notes

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeSubject:
    """Plays runs of two deltas in this process, and notes them as an environment does."""

    def __init__(self, seconds: float = 0.0, fail: frozenset[int] = frozenset(), full: int = 0) -> None:
        self.processes = Processes(os.getpid(), os.getpid(), (os.getpid(),))
        self.played: list[int] = []
        self.ends: list[str] = []
        self.most = 0
        self.full = asyncio.Event()
        self._open = 0
        self._full = full
        self._seconds = seconds
        self._fail = fail
        self._notebook = Notebook()

    async def run(self, number: int, on_delta: Callable[[Any], None]) -> None:
        self.played.append(number)
        self._notebook.note(BEGAN, number)
        self._open += 1
        if self._open == self._full:
            self.full.set()
        self.most = max(self.most, self._open)
        try:
            on_delta("first")
            await asyncio.sleep(self._seconds)
            on_delta("last")
        except asyncio.CancelledError:
            self._notebook.note(ABORTED, number)
            raise
        finally:
            self._open -= 1
        self._notebook.note(ENDED, number)
        if number in self._fail:
            raise ValueError(f"run {number} is wrong")

    async def finish(self, *, fetch: bool) -> None:
        self.ends.append(f"finish {fetch}")


def _field(figures: dict[str, float | None], name: str) -> float:
    value = figures[name]
    assert value is not None
    return value


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes(tmp_path / "notes")
    monkeypatch.setenv(VARIABLE, str(made.path))
    return made


async def test_plays_each_run_once_and_so_many_at_a_time(notes: Notes) -> None:
    subject = FakeSubject()
    figures = await play(Order(20, 4, first_number=100, turns=5, fetch=True), subject, notes)
    assert sorted(subject.played) == list(range(100, 120))
    assert subject.most == 4
    assert subject.ends == ["finish True"]
    seconds = figures["seconds"]
    assert seconds is not None
    assert figures["episodes_per_s"] == pytest.approx(20 / seconds)
    assert figures["turns_per_s"] == pytest.approx(100 / seconds)
    assert figures["deltas_per_s"] == pytest.approx(40 / seconds)
    assert figures["deltas_per_episode"] == 2.0
    assert figures["lag_max_ms"] is not None
    # The fake's client, broker and worker are one process: its time is in each of the three, once in the sum.
    assert figures["delta_cpu_us"] == pytest.approx(_field(figures, "client_cpu_ms") * 1e3 / 2.0)
    assert "cancelled" not in figures


async def test_a_failed_run_fails_the_round_once_it_is_over(notes: Notes) -> None:
    subject = FakeSubject(fail=frozenset({3, 5}))
    with pytest.raises(RoundFailed, match=r"^2 of 8 episodes failed, .*run 3 is wrong; .*run 5"):
        await play(Order(8, 2, first_number=0, turns=1), subject, notes)
    assert len(subject.played) == 8
    assert subject.ends == ["finish False"]


async def test_half_are_cancelled_and_their_aborts_found_in_the_notes(notes: Notes) -> None:
    subject = FakeSubject(seconds=0.05)
    figures = await play(Order(20, 20, first_number=50, turns=1, cancel_within=0.02), subject, notes)
    assert (figures["cancelled"], figures["aborted"]) == (10, 10)
    assert (figures["never_began"], figures["went_on"]) == (0, 0)
    assert figures["turns_per_s"] is None
    assert figures["abort_p99_ms"] is not None
    assert 0.0 <= figures["abort_p99_ms"] < 1000.0


async def test_a_run_that_ends_before_its_cancel_is_none_that_was_cancelled(notes: Notes) -> None:
    figures = await play(Order(20, 20, first_number=0, turns=1, cancel_within=60.0), FakeSubject(), notes)
    assert (figures["cancelled"], figures["aborted"], figures["abort_p50_ms"]) == (0, 0, None)


async def test_what_finishing_costs_is_in_the_round(notes: Notes) -> None:
    class Frees(FakeSubject):
        async def finish(self, *, fetch: bool) -> None:
            until = time.process_time() + 0.05
            while time.process_time() < until:
                pass

    figures = await play(Order(2, 2, first_number=0, turns=1), Frees(), notes)
    assert _field(figures, "worker_cpu_ms") * 2 >= 50.0
    assert _field(figures, "seconds") >= 0.05


async def test_a_round_without_a_delta_has_no_cost_of_one(notes: Notes) -> None:
    class Mute(FakeSubject):
        async def run(self, number: int, on_delta: Callable[[Any], None]) -> None:
            await super().run(number, lambda _: None)

    figures = await play(Order(2, 2, first_number=0, turns=1), Mute(), notes)
    assert (figures["deltas_per_episode"], figures["delta_cpu_us"]) == (0.0, None)


async def test_a_round_that_is_cancelled_leaves_no_run_behind(notes: Notes) -> None:
    subject = FakeSubject(seconds=60.0, full=4)
    order = Order(4, 4, first_number=0, turns=1, cancel_within=50.0)
    playing = asyncio.create_task(play(order, subject, notes))
    await subject.full.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await notes.settled(range(4), 10.0) == set()
    assert len(notes.moments[ABORTED]) == 4


def test_the_clock_of_a_process_is_that_of_all_its_threads() -> None:
    before, own = gauges.cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < own + 0.02:
        pass
    assert 0.02 <= gauges.cpu_seconds(os.getpid()) - before <= time.process_time() - own + 0.01


def test_what_the_kernel_knows_of_a_process() -> None:
    gauges.reset_peak(os.getpid())
    assert 1.0 < gauges.peak_mb(os.getpid()) < 10_000.0
    assert "python" in gauges.command_line(os.getpid())
    assert os.getpid() in gauges.children(os.getppid())


def test_only_the_connections_of_a_process_are_counted() -> None:
    lines = """\
0 0 127.0.0.1:1 127.0.0.1:2 users:(("python",pid=12,fd=3)) cubic bytes_sent:9 bytes_acked:5 bytes_received:100
0 0 127.0.0.1:2 127.0.0.1:1 users:(("python",pid=123,fd=3)) cubic bytes_acked:70 bytes_received:7
0 0 127.0.0.1:3 127.0.0.1:1 users:(("python",pid=12,fd=4)) cubic bytes_acked:30 bytes_received:20
0 0 127.0.0.1:4 127.0.0.1:1 users:(("python",pid=12,fd=5)) cubic wscale:7,7
"""
    assert gauges.parse_traffic(lines, 12) == gauges.Traffic(received=120, sent=35)
    assert gauges.parse_traffic(lines, 1) == gauges.Traffic(received=0, sent=0)


def test_percentiles() -> None:
    assert gauges.percentile([], 0.5) is None
    assert gauges.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert gauges.percentile([float(value) for value in range(100)], 0.99) == 99.0
    assert gauges.percentile([1.0], 0.99) == 1.0


def test_who_else_had_the_machine_is_what_was_neither_free_nor_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 12})
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    said = "".join(f"cpu{cpu} 900 900 900 100 20 3 4 900 0 0\n" for cpu in ("", "0", "1", "12")) + "ctxt 7\n"
    monkeypatch.setattr(Path, "read_text", lambda _: said)
    assert gauges.free_seconds() == pytest.approx(2 * 1.27)
    assert gauges.others_percent(2.0, 1.5, 1.5) == pytest.approx(25.0)
    assert gauges.others_percent(2.0, 2.5, 1.6) == 0.0


async def test_a_round_says_how_much_of_the_machine_others_had(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "others_percent", lambda seconds, free, own: (seconds, free, own))
    figures = await play(Order(2, 2, first_number=0, turns=1), FakeSubject(seconds=0.02), notes)
    seconds, free, own = figures["others_percent"]  # type: ignore[misc]
    assert seconds == figures["seconds"]
    assert 0.0 <= free <= (seconds + 0.1) * len(os.sched_getaffinity(0))
    assert own == pytest.approx(_field(figures, "delta_cpu_us") * 4 / 1e6)

"""The growth curves: what is called flat, what a window is charged with, and what the load looks like."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1.delta_pb2 import TraceDelta
from envtrio.v1.episode_pb2 import Episode as WireEpisode

from benchmarks.growth import FULL, QUICK, report, there_and_back
from benchmarks.growth_environment import GrowthEnvironment
from benchmarks.growth_fit import Point, own_cost, slope, without_own_cost
from benchmarks.growth_load import PROCESSES, Clocks, Load, Meter, Spent, Tally, Window
from benchmarks.growth_report import FAST, LENGTH, PACED, PART, WORKERS, Series, plot, sentences, table
from env_worker.domain import Episode, InvalidTaskError, SamplingParams
from env_worker.envs.base import Context, play
from env_worker.model import SimulatedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LENGTHS = (10, 30, 100, 300, 1000, 2000)


def window(cost: float, *, turns: int = 1000, deltas: int = 1000, wakes: int = 2000) -> Window:
    """A second in which each process spent a third of `cost` microseconds on a turn."""
    spent = Spent(dict.fromkeys(PROCESSES, cost * turns / 3e6), dict.fromkeys(PROCESSES, wakes))
    return Window(1.0, turns // 10, turns, deltas, spent, 0.001)


IDLE = window(0.0, wakes=0)


def points(cost: Callable[[float], float], at: Sequence[float] = LENGTHS, noise: float = 0.0) -> list[Point]:
    """Two windows at each place, the first dearer and the second cheaper by `noise`."""
    return [Point(x, [window(cost(x) * (1 + sign * noise)) for sign in (1, -1)], IDLE) for x in at]


def series(curve: list[Point], axis: str = LENGTH, regime: str = PACED) -> Series:
    return Series(axis, regime, "some load", curve)


class SeenClocks(Clocks):
    """Tells when a window begins."""

    def __init__(self, broker: int, workers: Sequence[int]) -> None:
        super().__init__(broker, workers)
        self.begun = asyncio.Event()

    def cpu(self) -> dict[str, float]:
        self.begun.set()
        return super().cpu()


async def played(**task: Any) -> Episode:
    episode = Episode("episode", "growth", task)
    context = Context("run", task, SamplingParams(), SimulatedModel(), episode)
    await play(GrowthEnvironment(), context)
    return episode


class TestSlope:
    @pytest.mark.parametrize(
        ("power", "verdict"), [(0.0, "flat"), (1.0, "grows"), (0.1, "grows"), (-0.5, "falls")]
    )
    def test_is_the_power_of_a_power_law(self, power: float, verdict: str) -> None:
        found = slope(points(lambda x: 50 * x**power))
        assert found.value == pytest.approx(power, abs=1e-9)
        assert found.error == pytest.approx(0.0, abs=1e-9)
        assert found.change == pytest.approx(200**power)
        assert found.verdict == verdict

    def test_a_cost_that_grows_with_the_trace_is_not_called_flat(self) -> None:
        assert slope(points(lambda turns: 100 + 0.05 * turns)).verdict == "grows"

    def test_noise_widens_the_error_and_not_the_slope(self) -> None:
        found = slope(points(lambda _: 50.0, noise=0.1))
        assert found.value == pytest.approx(0.0, abs=1e-9)
        assert found.error > 0.01
        assert found.verdict == "flat"

    def test_a_slope_within_its_error_is_no_verdict(self) -> None:
        found = slope(points(lambda x: 50 * x**0.05, noise=0.8))
        assert found.change > 1.2
        assert found.verdict == "too noisy to say"

    def test_two_points_of_one_window_suffice(self) -> None:
        found = slope([Point(x, [window(10 * x)], IDLE) for x in (1, 4)])
        assert found.value == pytest.approx(1.0)
        assert found.verdict == "grows"

    def test_a_process_that_spends_less_than_when_idle_is_no_error(self) -> None:
        busy = window(30.0)
        assert slope([Point(x, [IDLE if x == 1 else busy], busy) for x in (1, 4)]).verdict == "flat"


class TestOwnCost:
    def test_is_told_from_that_of_a_turn(self) -> None:
        own = own_cost(points(lambda turns: 80 + 2000 / turns))
        assert own.turn == pytest.approx(80)
        assert own.episode == pytest.approx(2000)
        assert own.share(25) == pytest.approx(0.5)

    def test_is_none_where_long_episodes_are_dearer(self) -> None:
        assert own_cost(points(lambda turns: 80 + turns)).episode == 0.0

    def test_without_it_a_fall_is_flat(self) -> None:
        curve = points(lambda turns: 80 + 2000 / turns)
        assert slope(curve).verdict == "falls"
        rest = without_own_cost(curve, own_cost(curve))
        assert [point.x for point in rest] == [300, 1000, 2000]
        assert slope(rest).verdict == "flat"

    def test_two_points_are_left_however_large_it_is(self) -> None:
        curve = points(lambda turns: 1 + 100_000 / turns)
        assert [point.x for point in without_own_cost(curve, own_cost(curve))] == [1000, 2000]


class TestWindow:
    def test_is_not_charged_with_what_an_idle_pool_spends(self) -> None:
        idle = Window(2.0, 0, 0, 0, Spent(dict.fromkeys(PROCESSES, 0.01), dict.fromkeys(PROCESSES, 200)), 0.0)
        busy = window(300.0, wakes=1000)
        assert busy.cpu_per_turn("broker", idle) == pytest.approx(95.0)
        assert busy.cpu_per_turn("", idle) == pytest.approx(285.0)
        assert busy.wakes_per_turn(idle) == pytest.approx(2.7)

    def test_without_a_turn_has_no_cost(self) -> None:
        with pytest.raises(RuntimeError, match=r"no turn came within 1\.0 s"):
            window(1.0, turns=0).cpu_per_turn("", IDLE)

    def test_a_delta_of_several_turns_costs_more_than_a_turn(self) -> None:
        point = Point(1, [window(60.0, deltas=250)], IDLE)
        assert point.delta_costs() == [pytest.approx(240.0)]
        assert point.deltas_per_turn == 0.25

    async def test_counts_what_comes_within_it(self) -> None:
        tally = Tally()
        clocks = SeenClocks(os.getpid(), [os.getpid(), os.getpid()])
        tally.delta(TraceDelta())
        measuring = asyncio.create_task(Meter(clocks, tally).window(0.05))
        await clocks.begun.wait()
        began = time.process_time()
        while time.process_time() < began + 0.01:
            pass
        delta = TraceDelta()
        delta.append.calls.add()
        tally.delta(delta)
        seen = await measuring
        assert (seen.deltas, seen.turns, seen.episodes) == (1, 1, 0)
        assert seen.seconds >= 0.05
        assert seen.spent.cpu["client"] >= 0.01
        # Twice this process.
        assert seen.spent.cpu["workers"] > 1.5 * seen.spent.cpu["broker"]

    def test_a_thread_that_waits_is_woken(self) -> None:
        clocks = Clocks(os.getpid(), [])
        before = clocks.wakes()
        threading.Event().wait(0.001)
        after = clocks.wakes()
        assert after["client"] > before["client"]
        assert (before["workers"], after["workers"]) == (0, 0)


class TestTally:
    def test_refuses_an_episode_that_is_not_what_was_asked_for(self) -> None:
        episode = WireEpisode()
        episode.head.ok = True
        episode.traces.add().nodes.add()
        with pytest.raises(RuntimeError, match="an episode of 2 turns came with 1 nodes, ok=True"):
            Tally().episode(episode, 2)

    def test_counts_one_that_is(self) -> None:
        tally, episode = Tally(), WireEpisode()
        episode.head.ok = True
        nodes = episode.traces.add().nodes
        nodes.add()
        nodes.add()
        tally.episode(episode, 1)
        assert tally.episodes == 1


class TestLoad:
    def test_its_lanes_are_at_all_moments_of_an_episode(self) -> None:
        load = Load(runs=1000, turns=10, turn_seconds=4.0)
        lengths = Counter(load.first_turns(lane) for lane in range(load.runs))
        assert lengths == dict.fromkeys(range(1, 11), 100)
        pauses = [load.first_pause(lane) for lane in range(load.runs)]
        assert pauses[0] == 0.0
        assert 3.9 < pauses[-1] < load.turn_seconds < load.warm_seconds

    @pytest.mark.parametrize("at", [(1,), (1, 2), FULL.workers, FULL.lengths, FULL.runs, QUICK.runs])
    def test_goes_there_and_back_once(self, at: Sequence[int]) -> None:
        assert sorted(there_and_back(at)) == list(at)

    def test_a_drift_of_the_machine_is_seen_as_noise(self) -> None:
        order = there_and_back(LENGTHS)
        drifting = points(lambda x: 50 * (1 + 0.05 * order.index(int(x))))
        assert slope(drifting).verdict == "flat"


class TestEnvironment:
    async def test_plays_two_nodes_and_a_call_a_turn(self) -> None:
        [trace] = (await played(turns=3, tokens=21)).traces
        assert [(node.parent, node.sampled, len(node.token_ids)) for node in trace.nodes] == [
            (None, False, 11),
            *((0, True, 10), (1, False, 11), (2, True, 10), (3, False, 11), (4, True, 10)),
        ]
        assert [node.message.role for node in trace.nodes[:3]] == ["user", "assistant", "tool"]
        assert all(len(node.logprobs) == 10 for node in trace.nodes if node.sampled)
        assert [(call.node, call.prompt_tokens) for call in trace.calls] == [(1, 11), (3, 32), (5, 53)]
        assert (trace.reward, trace.stop_condition) == (1.0, "completed")

    async def test_turns_keep_a_schedule(self) -> None:
        began = time.monotonic()
        await played(turns=5, tokens=2, turn_seconds=0.004)
        assert time.monotonic() - began >= 0.02

    @pytest.mark.parametrize(
        "task", [{"turns": 0}, {"tokens": 1}, {"turn_seconds": -1}, {"turn": 1}, {"tokens": "many"}]
    )
    async def test_refuses_other_tasks(self, task: dict[str, Any]) -> None:
        with pytest.raises(InvalidTaskError, match=next(iter(task))):
            await played(**task)


class TestReport:
    def test_says_flat_beyond_the_cost_of_an_episode(self) -> None:
        said = sentences(series(points(lambda turns: 80 + 2000 / turns)))
        assert "from 10 to 2,000 turns an episode: **falls**" in said
        assert "80 + 2,000 / turns" in said
        assert "From 300 turns on, where the former's share is at most 10%: **flat**" in said
        assert "of one episode of 2,000 turns, a turn cost 81, 81 us" in said

    def test_says_that_it_grows(self) -> None:
        said = sentences(series(points(lambda turns: 80 + turns)))
        assert "**grows**" in said
        assert "own cost" not in said

    def test_says_how_many_turns_share_a_delta_where_that_changes(self) -> None:
        curve = [Point(x, [window(60.0, deltas=deltas)], IDLE) for x, deltas in ((1, 1000), (4, 250))]
        assert "Deltas a turn, point by point: 1.00, 0.25." in sentences(series(curve, LENGTH, FAST))

    def test_says_what_an_idle_worker_spends(self) -> None:
        idles = [Window(1.0, 0, 0, 0, Spent(dict.fromkeys(PROCESSES, s), dict.fromkeys(PROCESSES, 0)), 0.0)
                 for s in (0.004, 0.010)]  # fmt: skip
        curve = [Point(x, [window(60.0)], idle) for x, idle in zip((1, 4), idles, strict=True)]
        assert "each further worker spends 2.0 ms a second" in sentences(series(curve, WORKERS))

    def test_says_what_a_lesser_load_alone_costs_a_worker(self) -> None:
        said = sentences(series(points(lambda x: 60 * x**0.5, (1, 4)), WORKERS, PART))
        assert "a turn costs a worker x2.00 where its load is only that of one of 4" in said
        assert "when idle" not in said

    def test_has_a_row_for_each_point(self) -> None:
        curves = [series(points(lambda _: 60.0, noise=0.1), regime=regime) for regime in (PACED, FAST)]
        header, rule, *rows = table(curves).splitlines()
        assert len(rows) == 2 * len(LENGTHS)
        assert {line.count("|") for line in (header, rule, *rows)} == {header.count("|")}
        assert rows[0].startswith(
            "| 10 | paced | 20 (18 to 22) | 20 (18 to 22) | 20 (18 to 22) | 60 (54 to 66) |"
        )
        assert rows[-1].startswith("| 2,000 | as fast as it goes |")

    def test_and_a_plot(self, tmp_path: Path) -> None:
        axes = [[series(points(lambda _: 60.0))], [series(points(lambda _: 60.0, (1, 2)), WORKERS)]]
        said = report(axes, QUICK, "the command", "growth.png")
        assert "Command: `the command`" in said
        assert said.count("\n## Along ") == 2
        plot(axes, tmp_path / "growth.png")
        assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")

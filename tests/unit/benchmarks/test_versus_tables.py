"""Workloads, bars, figures and the report made of them: nothing that failed or is missing is hidden."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.versus.bars import BARS, Bar, Kind
from benchmarks.versus.cancels import cancel_plan
from benchmarks.versus.figures import FIGURES, Results, Spread
from benchmarks.versus.report import report
from benchmarks.versus.ticker import Ticker, ticker
from benchmarks.versus.why import why
from benchmarks.versus.workloads import ALONE, FETCHED, OURS, PEER, SETTLED, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

FASTER = Bar("small", "episodes_per_s", Kind.AT_LEAST, 8.0)
CHEAPER = Bar("small", "client_cpu_ms", Kind.AT_MOST, 0.25)
SMALL_ENOUGH = Bar("small", "broker_mb", Kind.ABSOLUTE, 80.0)


def results(
    ours: Sequence[float | str | None], peer: Sequence[float | str | None], figure: str = "episodes_per_s"
) -> Results:
    made = Results(WORKLOADS["small"])
    for side, values in ((OURS, ours), (PEER, peer)):
        for value in values:
            made.add(side, value if isinstance(value, str) else {figure: value})
    return made


def written(*made: Results) -> str:
    return report(
        made,
        rounds=2,
        command="make bench",
        date="today",
        machine={"kernel": "K"},
        versions={OURS: {"python": "3.11"}},
        ticker=Ticker(80.0, 16.0),
        plot="results.png",
    )


def test_ratios_are_of_the_same_round() -> None:
    made = results([10.0, 90.0], [1.0, 10.0])
    assert made.ratios(OURS, "episodes_per_s") == [10.0, 9.0]
    assert made.judged(FASTER) == Spread(9.5, 9.0, 10.0)
    assert made.verdict(FASTER) == "met"


@pytest.mark.parametrize(
    ("ours", "peer", "left"),
    [
        pytest.param([10.0, "crashed"], [1.0, 2.0], [10.0], id="ours-failed"),
        pytest.param([10.0, 20.0], ["crashed", 2.0], [10.0], id="peer-failed"),
        pytest.param([10.0, None], [1.0, 2.0], [10.0], id="not-measured"),
        pytest.param([10.0, 20.0], [0.0, 2.0], [10.0], id="nothing-to-divide-by"),
        pytest.param([], [1.0], [], id="no-round"),
    ],
)
def test_a_round_without_a_figure_makes_no_ratio(
    ours: list[float | str | None], peer: list[float | str | None], left: list[float]
) -> None:
    assert results(ours, peer).ratios(OURS, "episodes_per_s") == left


def test_a_failed_round_of_ours_meets_no_bar_and_one_of_the_peer_is_told() -> None:
    made = results([100.0, "2 of 8 episodes failed"], [1.0, "its process has ended"])
    assert made.verdict(FASTER) == "missed: 1 rounds failed"
    text = written(made)
    assert "**1 rounds of envtrio failed**: 2 of 8 episodes failed" in text
    assert "**1 rounds of peer failed**: its process has ended" in text
    assert "**missed: 1 rounds failed**" in text


@pytest.mark.parametrize(
    ("bar", "ours", "verdict"),
    [
        (FASTER, 8.0, "met"),
        (FASTER, 7.9, "missed"),
        (CHEAPER, 0.25, "met"),
        (CHEAPER, 0.26, "missed"),
        (SMALL_ENOUGH, 80.0, "met"),
        (SMALL_ENOUGH, 81.0, "missed"),
        (SMALL_ENOUGH, None, "not measured"),
    ],
)
def test_verdicts(bar: Bar, ours: float | None, verdict: str) -> None:
    assert results([ours], [1.0], bar.figure).verdict(bar) == verdict


def test_each_bar_is_of_a_figure_and_a_side_that_there_are() -> None:
    for bar in BARS:
        assert bar.figure in FIGURES
        assert bar.side in WORKLOADS[bar.workload].sides


def test_the_report_says_what_was_measured_and_what_was_not() -> None:
    text = written(results([100.0, 120.0], [10.0, 10.0]))
    assert "| episodes/s | 110 (100 to 120) | 10 (10 to 10) | 11x (10 to 12) |" in text
    assert "| small | episodes/s | at least 8x | 11x (10 to 12) | met |  |" in text
    hop = "bytes on the client's hop"
    assert f"| small | {hop}, received, an episode | at most 0.7x |  | **not measured** | `ss` is" in text
    assert f"| {hop}, received, an episode | - | - | - |" in text
    assert f"| {hop}, sent, an episode | - | - | - |" in text
    assert "\n| envtrio | python 3.11 |\n" in text
    assert "![" in text
    assert "event-loop lag in the client, p50" not in text


def test_arrays_are_reported_with_and_without_fetching_them() -> None:
    made = Results(WORKLOADS["r3-16"])
    for side, value in ((OURS, 240.0), (FETCHED, 100.0), (PEER, 20.0)):
        made.add(side, {"episodes_per_s": value})
    text = written(made)
    cells = ("240 (240 to 240)", "100 (100 to 100)", "20 (20 to 20)", "12x (12 to 12)", "5x (5 to 5)")
    assert f"| episodes/s | {' | '.join(cells)} |" in text
    assert "| r3-16 (fetched) | episodes/s | at least 5x | 5x (5 to 5) | met |  |" in text


def test_half_of_the_runs_are_cancelled_and_the_same_for_both_sides() -> None:
    plan = cancel_plan(101, 0.2, seed=3)
    moments = [after for after in plan if after is not None]
    assert (len(plan), len(moments)) == (101, 50)
    assert 0.0 <= min(moments) < max(moments) <= 0.2
    assert plan == cancel_plan(101, 0.2, seed=3)
    assert plan != cancel_plan(101, 0.2, seed=4)


def test_a_round_keeps_no_more_arrays_than_memory_has_room_for() -> None:
    routed, small = WORKLOADS["r3-64"], WORKLOADS["small"]
    assert routed.shape.array_bytes == 11_520_000
    assert routed.fitting(10**12) == routed
    assert routed.fitting(3 * 10**9) == replace(routed, ours=104 - 64)
    assert routed.fitting(0).ours == 1
    assert small.fitting(0) == small


def test_a_try_has_as_many_at_once() -> None:
    for workload in WORKLOADS.values():
        tried = workload.quick
        assert tried.shape == workload.shape
        assert all(workload.concurrency <= tried.episodes(side) for side in (OURS, PEER))
        assert all(tried.episodes(side) <= workload.episodes(side) for side in (OURS, PEER))


def both(ours: dict[str, float | None], peer: dict[str, float | None], workload: str = "small") -> Results:
    made = Results(WORKLOADS[workload])
    made.add(OURS, ours)
    made.add(PEER, peer)
    return made


def test_what_the_ratios_rest_on_is_told_of_each_workload() -> None:
    joins = both(
        {"deltas_per_episode": 3.5, "delta_cpu_us": 300.0, "episodes_per_s": 900.0},
        {"deltas_per_episode": 11.0, "delta_cpu_us": 600.0, "episodes_per_s": 300.0},
    )
    alike = both(
        {"deltas_per_episode": 1.0}, {"deltas_per_episode": 1.05, "delta_cpu_us": 9.0}, "small-joined"
    )
    text = written(joins, alike)
    assert "| small | 4 times | 3.5 | 11 | no, 0.318x | 300 | 600 | 0.5x | 3x | - | - |" in text
    assert "| small-joined | never | 1 | 1.05 | yes | - | 9 | - | - | - | - |" in text
    assert "10 turns x 200 tokens, never giving way between turns; 64 at once" in text
    lines = text.splitlines()
    header = lines.index(next(line for line in lines if line.startswith("| workload | gives way")))
    assert lines[header + 1] == "|" + " --- |" * (lines[header].count("|") - 1)


def test_only_what_was_played_is_described() -> None:
    for names, said in (((), ""), (("small-joined",), "never gives way"), (("paced-64",), "waits 150 ms")):
        text = written(*(Results(WORKLOADS[name]) for name in ("small", *names)))
        assert [name for name in ("small-joined", "paced-64") if f"- **{name}** is" in text] == list(names)
        assert said in text
        assert "{" not in text
    assert "## The ceiling" not in text
    made = results([100.0], [10.0])
    made.add(ALONE, {"episodes_per_s": 500.0})
    assert written(made).count("## The ceiling") == 1


def test_what_the_lags_meter_costs_is_told_as_it_was_measured() -> None:
    made = both(
        {"client_cpu_ms": 0.8, "episodes_per_s": 40.0},
        {"client_cpu_ms": 4.0, "episodes_per_s": 40.0},
        "paced-64",
    )
    text = written(made)
    assert "took 80 µs of CPU more each time,\nor 16 ms a second, measured once" in text
    assert "| 1x | 50.0% | 10.0% |" in text


@pytest.mark.parametrize(("took", "cost"), [(0.021, 0.020), (0.0, 0.0)])
async def test_the_lags_meter_is_measured_by_an_idle_loop(
    monkeypatch: pytest.MonkeyPatch, took: float, cost: float
) -> None:
    monkeypatch.setattr("benchmarks.versus.ticker._SECONDS", 0.1)
    monkeypatch.setattr(time, "process_time", iter((5.0, 5.001, 6.0, 6.0 + took)).__next__)
    found = await ticker()
    # It wakes no more often than every 5 ms; the time is 0.1 s or more.
    assert cost * 1e6 / 22 <= found.tick_us <= cost * 1e6
    assert found.second_ms <= cost * 1e3 / 0.1


def test_figures_of_several_sides_are_of_the_same_round() -> None:
    made = results([1.0, "crashed", 3.0, None], [5.0, 6.0, None, 8.0])
    rate = "episodes_per_s"
    assert made.together((OURS, rate), (PEER, rate)) == [(1.0, 5.0)]
    assert made.together((PEER, rate)) == [(5.0,), (6.0,), (8.0,)]
    assert made.together((OURS, rate), (ALONE, rate)) == []


def test_the_joined_workload_is_small_but_for_giving_way_and_has_no_bars() -> None:
    joined, small = WORKLOADS["small-joined"], WORKLOADS["small"]
    assert replace(joined.shape, yields=SETTLED) == small.shape
    assert {shape.yields for shape in (one.shape for one in WORKLOADS.values() if one != joined)} == {SETTLED}
    assert not [bar for bar in BARS if bar.workload == joined.name]


@pytest.mark.parametrize(
    ("bar", "ours", "peer", "told"),
    [
        pytest.param(
            FASTER,
            [{"episodes_per_s": 500.0, "client_cpu_ms": 0.5, "broker_cpu_ms": 0.2, "worker_cpu_ms": 1.9}],
            [{"episodes_per_s": 100.0}],
            "in the pool the worker 95%, the client 25%, the broker 10% of a CPU, together 130%",
            id="who-is-busy",
        ),
        pytest.param(
            CHEAPER,
            [{"client_cpu_ms": 3.0, "deltas_per_episode": 5.0}],
            [{"client_cpu_ms": 6.0, "deltas_per_episode": 10.0}],
            "0.5x as many deltas as the peer's, each at 1x the CPU",
            id="the-two-factors",
        ),
        pytest.param(
            CHEAPER,
            # Of medians it would be 0.5x.
            [{"client_cpu_ms": 6.0, "deltas_per_episode": deltas} for deltas in (10.0, 5.0, 20.0)],
            [{"client_cpu_ms": cpu, "deltas_per_episode": 10.0} for cpu in (6.0, 12.0, 12.0)],
            "1x as many deltas as the peer's, each at 1x the CPU",
            id="the-two-factors-of-the-same-round",
        ),
        pytest.param(
            Bar("small", "worker_cpu_ms", Kind.AT_MOST, 0.3),
            [{"worker_cpu_ms": 3.0, "deltas_per_episode": 5.0}],
            [{"worker_cpu_ms": 6.0, "deltas_per_episode": 10.0}],
            "0.5x as many deltas as the peer's, each at 1x the CPU, the environment's in it",
            id="the-workers-has-the-environments",
        ),
        pytest.param(
            Bar("small", "lag_max_ms", Kind.AT_MOST, 0.1),
            [{"lag_max_ms": 8.0, "lag_p99_ms": 1.0}],
            [{"lag_max_ms": 9.0, "lag_p99_ms": 7.0}],
            "a stall of 100 ms or more had envtrio in 0 of 1 rounds, the peer in 0 of 1 rounds; "
            "p99 is 1 ms, the peer's 7 ms; of the whole run 8 ms to the peer's 9 ms, 0.889x: missed by that",
            id="the-other-stalls",
        ),
        pytest.param(
            Bar("small", "lag_max_ms", Kind.AT_MOST, 0.1),
            [{"lag_max_ms": 5.0}, {"lag_max_ms": 9.0}, {"lag_max_ms": 4.0}],
            [{"lag_max_ms": 5.0}, {"lag_max_ms": 360.0}, {"lag_max_ms": 4.0}],
            "met in 1 of 3 rounds; a stall of 100 ms or more had envtrio in 0 of 3 rounds, the peer in 1 of "
            "3 rounds; of the whole run 9 ms to the peer's 360 ms, 0.025x: met by that",
            id="the-whole-run-says-otherwise",
        ),
        pytest.param(
            Bar("small", "lag_max_ms", Kind.AT_MOST, 0.1),
            [{"lag_max_ms": 5.0}, {"lag_max_ms": 50.0}, {"lag_max_ms": 4.0}],
            [{"lag_max_ms": 300.0}, {"lag_max_ms": 5.0}, {"lag_max_ms": 290.0}],
            "of the whole run 50 ms to the peer's 300 ms, 0.167x: missed by that",
            id="the-whole-run-says-otherwise-of-one-that-is-met",
        ),
        pytest.param(
            Bar("small", "lag_max_ms", Kind.ABSOLUTE, 10.0),
            [{"lag_max_ms": 5.0}, {"lag_max_ms": 11.0}, {"lag_max_ms": 4.0}],
            [{}],
            "of the whole run 11 ms: missed by that",
            id="the-whole-run-by-itself",
        ),
        pytest.param(
            SMALL_ENOUGH,
            [{"broker_mb": 79.0}, {"broker_mb": 90.0}, {"broker_mb": 91.0}],
            [{}],
            "met in 1 of 3 rounds",
            id="not-always",
        ),
        pytest.param(
            FASTER, [{"episodes_per_s": 9.0}], ["crashed"], "the peer's rounds failed", id="no-peer"
        ),
        pytest.param(FASTER, [{"episodes_per_s": 9.0}], [{"episodes_per_s": 1.0}], "", id="met"),
        pytest.param(FASTER, ["crashed"], [{"episodes_per_s": 1.0}], "", id="failed"),
    ],
)
def test_what_the_rounds_tell_of_a_missed_bar(
    bar: Bar, ours: list[dict[str, float | None] | str], peer: list[dict[str, float | None] | str], told: str
) -> None:
    made = Results(WORKLOADS["small"])
    for side, rounds in ((OURS, ours), (PEER, peer)):
        for result in rounds:
            made.add(side, result)
    assert why(made, bar) == told


@pytest.mark.parametrize("ratio", [0.028, 2.0])
def test_of_arrays_it_says_how_many_bytes_came_and_no_more(ratio: float) -> None:
    ours = {"client_cpu_ms": 5.0, "worker_cpu_ms": 9.0, "client_bytes": ratio * 23e6}
    made = both(ours, {"client_cpu_ms": 10.0, "worker_cpu_ms": 10.0, "client_bytes": 23e6}, "r3-16")
    told = why(made, Bar("r3-16", "client_cpu_ms", Kind.AT_MOST, 0.1))
    assert told == f"the client received {ratio:g}x the peer's 23 MB an episode"
    assert why(made, Bar("r3-16", "worker_cpu_ms", Kind.AT_MOST, 0.1)) == ""

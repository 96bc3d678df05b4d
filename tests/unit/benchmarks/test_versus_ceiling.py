"""The environment with no pool: each part plays what it says, in turns with the pools; bars are read so."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.versus.bars import Bar, Kind
from benchmarks.versus.bench import Match, Setting
from benchmarks.versus.ceiling import Ceiling, routing, write
from benchmarks.versus.figures import Results
from benchmarks.versus.headroom import headroom, reach
from benchmarks.versus.load import Order
from benchmarks.versus.side import Side
from benchmarks.versus.workloads import (
    ALONE,
    CEILING,
    ENCODED,
    FETCHED,
    OURS,
    OVERWRITTEN,
    PEER,
    TRACED,
    WORKLOADS,
    WRITTEN,
    Shape,
    Workload,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUTED = Workload("tiny", Shape(3, 8, layers=2, top_k=2), 4, ours=8, peer=8)
FASTER = Bar("small", "episodes_per_s", Kind.AT_LEAST, 8.0)
CHEAPER = Bar("small", "worker_cpu_ms", Kind.AT_MOST, 0.3)


@pytest.fixture
def ceiling() -> Iterator[Ceiling]:
    made = Ceiling(ROUTED)
    yield made
    made.close()


@pytest.mark.parametrize("part", [ALONE, TRACED, ENCODED, OVERWRITTEN, WRITTEN])
async def test_each_part_plays_and_has_figures(ceiling: Ceiling, part: str) -> None:
    figures = await ceiling.play(Order(9, 4, first_number=0, turns=3, part=part))
    assert figures.keys() == {"seconds", "episodes_per_s", "worker_cpu_ms", "others_percent"}
    assert 0.0 <= figures.pop("others_percent") <= 100.0
    assert all(figures.values())
    assert figures["episodes_per_s"] == pytest.approx(9 / figures["seconds"])


async def test_what_is_written_is_the_routing_with_its_repairs(ceiling: Ceiling, tmp_path: Path) -> None:
    episode = await ceiling.encoded()
    whole = b"".join(node.routed_experts.tobytes() for node in episode.traces[0].nodes)  # type: ignore[union-attr]
    assert b"".join(piece.tobytes() for piece in routing(episode)) == whole
    assert len(whole) == ROUTED.shape.array_bytes
    before = os.listdir("/proc/self/fd")
    write(routing(episode))
    assert os.listdir("/proc/self/fd") == before
    for _ in range(2):
        ceiling._overwrite(routing(episode))
    [file] = ceiling._files
    assert os.pread(file, 2 * len(whole), 0) == whole


def test_what_has_no_room_to_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, offset: 3)
    with pytest.raises(OSError, match="3 of 4 bytes were written"):
        write([memoryview(b"four")])


def test_saturated_workloads_have_a_ceiling_and_paced_ones_have_none() -> None:
    assert WORKLOADS["small"].ceilings == (ALONE, TRACED, ENCODED)
    assert WORKLOADS["r3-64"].ceilings == (ALONE, TRACED, OVERWRITTEN, WRITTEN)
    assert WORKLOADS["paced-64"].ceilings == WORKLOADS["churn"].ceilings == ()


async def test_its_process_answers_orders(tmp_path: Path) -> None:
    async with Side(CEILING, "small", Path(sys.executable), tmp_path / "log") as side:
        figures = await side.play(Order(2, 2, first_number=0, turns=10, part=ALONE), 60.0)
    assert figures["episodes_per_s"]


async def test_its_rounds_are_played_in_turns_with_the_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[str, str, int]] = []

    class Recorded:
        versions: dict[str, str] = {}  # noqa: RUF012

        def __init__(self, name: str, *_: Any) -> None:
            self.name = name

        async def __aenter__(self) -> Recorded:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def play(self, order: Order, timeout: float) -> dict[str, float]:
            played.append((self.name, order.part, order.episodes))
            return {"episodes_per_s": 1.0}

    monkeypatch.setattr("benchmarks.versus.bench.Side", Recorded)
    monkeypatch.setattr("benchmarks.versus.bench._REST_SECONDS", 0.0)
    pythons = dict.fromkeys((OURS, PEER, CEILING), Path(sys.executable))
    results = await Match(ROUTED, Setting(2, pythons, tmp_path, lambda _: None)).play()
    one = [(OURS, "", 8), (OURS, "", 8), (PEER, "", 8)]
    one += [(CEILING, ALONE, 16), *((CEILING, part, 4) for part in (TRACED, OVERWRITTEN, WRITTEN))]
    assert played[-14:] == [*one, *reversed(one)]
    assert {side: len(rounds) for side, rounds in results.rounds.items()} == dict.fromkeys(
        (OURS, FETCHED, PEER, *ROUTED.ceilings), 2
    )
    json.dumps(results.rounds)


def results(workload: str = "small", **rounds: list[dict[str, float | None] | str]) -> Results:
    """By the name of a side's constant its rounds."""
    names = {"ours": OURS, "fetched": FETCHED, "peer": PEER, "alone": ALONE, "traced": TRACED}
    names |= {"encoded": ENCODED, "over": OVERWRITTEN, "written": WRITTEN}
    made = Results(WORKLOADS[workload])
    for name, figures in rounds.items():
        for figure in figures:
            made.add(names[name], figure)
    return made


def rates(*values: float, others: float = 0.0) -> list[dict[str, float | None] | str]:
    return [{"episodes_per_s": value, "others_percent": others} for value in values]


def cpu(*values: float) -> list[dict[str, float | None] | str]:
    return [{"worker_cpu_ms": value} for value in values]


def test_out_of_reach_is_what_no_round_of_the_environment_alone_meets() -> None:
    made = results(peer=rates(10, 10, 10), ours=rates(20, 20, 20), alone=rates(70, 79, 60))
    made.rounds |= results(traced=rates(60, 60, 60)).rounds
    assert reach(made, FASTER) == (
        "**out of reach**: the environment alone and nothing else is at 7x, and meets the bar in none of "
        "3 rounds"
    )


@pytest.mark.parametrize("row", ["traced", "encoded"])
def test_rows_with_our_own_code_in_them_are_no_excuse(row: str) -> None:
    made = results(peer=rates(10, 10, 10), ours=rates(20, 20, 20), alone=rates(90, 90, 90))
    made.rounds |= results(traced=rates(85, 85, 85)).rounds
    made.rounds |= results(**{row: rates(70, 79, 60)}).rounds
    told = reach(made, FASTER)
    assert told.startswith("**beyond envtrio's records as they are**: the environment with envtrio's trace")
    assert told.endswith(" in none of 3 rounds; the environment alone meets it, at 9x")
    assert "out of reach" not in told


def test_a_bar_that_the_ceiling_meets_at_times_is_hardly_in_reach() -> None:
    made = results(peer=rates(10, 10, 10), ours=rates(20, 20, 20), alone=rates(81, 70, 60))
    assert reach(made, FASTER) == (
        "**hardly in reach**: the environment alone and nothing else is at 7x, and meets the bar in 1 of "
        "3 rounds"
    )
    made = results(peer=rates(*[10] * 4), alone=rates(*[90] * 4), traced=rates(100, 100, 79, 70))
    assert reach(made, FASTER).startswith("**hardly in reach of envtrio's records as they are**: ")
    assert "is at 8.95x, and meets the bar in 2 of 4 rounds; the environment alone" in reach(made, FASTER)


@pytest.mark.parametrize(("beside_it", "beside_the_peer"), [(6.0, 0.0), (0.0, 6.0)])
@pytest.mark.parametrize("rate", [70.0, 90.0])
def test_rates_of_rounds_that_others_disturbed_judge_no_bar(
    beside_it: float, beside_the_peer: float, rate: float
) -> None:
    peer = [*rates(10, 10, others=0.0), *rates(10, others=beside_the_peer)]
    made = results(
        peer=peer, ours=rates(20, 20, 20), alone=[*rates(rate, rate), *rates(rate, others=beside_it)]
    )
    assert reach(made, FASTER) == (
        f"not told: the environment alone and nothing else is at {rate / 10:g}x, but only 2 of 3 rounds are "
        "known to be quiet, with at most 5% of the machine for other programs beside it and beside the peer; "
        "it takes 3: measure more rounds, or on a quieter machine"
    )


def test_quiet_rounds_judge_beside_others_and_however_busy_they_were_themselves() -> None:
    # 1.8 CPUs of two, and none of that was another's.
    quiet: list[dict[str, float | None] | str] = [
        {"episodes_per_s": 70.0, "worker_cpu_ms": 1800.0 / 70.0, "others_percent": 5.0}
    ] * 3
    made = results(peer=rates(10, 10, 10, 1), alone=[*quiet, *rates(70, others=50.0)])
    assert reach(made, FASTER).endswith("is at 7x, and meets the bar in none of the 3 quiet rounds of 4")


@pytest.mark.parametrize(
    "alone",
    [
        pytest.param(rates(70), id="one-round"),
        pytest.param(["its process has ended", *rates(70), "its process has ended"], id="one-left"),
        pytest.param([{"episodes_per_s": 70.0}] * 5, id="nobody-knows-who-else-had-the-machine"),
    ],
)
def test_too_few_rounds_judge_nothing(alone: list[dict[str, float | None] | str]) -> None:
    made = results(peer=rates(*[10] * 5), ours=rates(*[20] * 5), alone=alone)
    assert reach(made, FASTER).startswith(
        "not told: the environment alone and nothing else is at 7x, but only "
    )


def test_cpu_time_judges_whoever_else_had_the_machine_but_not_by_two_rounds() -> None:
    made = results(peer=cpu(10, 10, 10), ours=cpu(5, 5, 5), alone=cpu(4, 4, 4))
    assert reach(made, CHEAPER).startswith(
        "**out of reach**: the environment alone and nothing else is at 0.4x"
    )
    made = results(peer=cpu(10, 10), ours=cpu(5, 5), alone=cpu(4, 4))
    assert reach(made, CHEAPER) == (
        "not told: the environment alone and nothing else is at 0.4x, by 2 of the 3 rounds that it takes to "
        "judge; measure more rounds"
    )


def test_of_a_bar_in_reach_it_says_what_is_left_for_a_pool() -> None:
    made = results(peer=rates(*[10] * 3), ours=rates(*[40] * 3), alone=rates(*[1000] * 3))
    made.rounds |= results(traced=rates(*[500] * 3), encoded=rates(*[100] * 3)).rounds
    assert reach(made, FASTER) == (
        "not out of reach: the environment with envtrio's trace, encoded once, and nothing else is at 10x; "
        "that leaves a pool 2.5 (2.5 to 2.5) ms an episode, and envtrio adds 15 (15 to 15) ms"
    )


def test_what_is_left_is_a_difference_of_the_same_round() -> None:
    # That of the medians would be negative: 1e3 / 80 - 1e3 / 70.
    made = results(peer=rates(1, 10, 10), ours=rates(5, 30, 30), alone=rates(70, 85, 60))
    assert reach(made, FASTER).endswith(
        "that leaves a pool 0.735 (-4.17 to 111) ms an episode, and envtrio adds 21.6 (16.7 to 186) ms"
    )
    made = results(peer=cpu(100, 10, 5), ours=cpu(40, 5, 5), alone=cpu(29, 3.2, 1.4))
    assert reach(made, CHEAPER).endswith(
        "that leaves a pool 0.1 (-0.2 to 1) ms an episode, and envtrio adds 3.6 (1.8 to 11) ms"
    )
    made = results(peer=cpu(10, 10, 10), ours=["it did not start"], alone=cpu(2, 2, 2))
    assert reach(made, CHEAPER).endswith("that leaves a pool 1 (1 to 1) ms an episode")


@pytest.mark.parametrize(
    "bar",
    [
        pytest.param(Bar("r3-64", "episodes_per_s", Kind.AT_LEAST, 12.0), id="kept"),
        pytest.param(Bar("r3-64", "episodes_per_s", Kind.AT_LEAST, 5.0, FETCHED), id="fetched"),
    ],
)
def test_arrays_that_lie_over_older_ones_judge_no_bar(bar: Bar) -> None:
    rows = {"peer": 10.0, "ours": 20.0, "fetched": 15.0, "alone": 999.0, "traced": 900.0, "over": 30.0}
    made = results("r3-64")
    for name, rate in rows.items():
        made.rounds |= results("r3-64", **{name: rates(*[rate] * 3)}).rounds
    assert reach(made, bar).startswith(
        "not out of reach: the environment with envtrio's trace and nothing else"
    )
    made.rounds |= results("r3-64", over=rates(*[130] * 3), written=rates(*[40] * 3)).rounds
    assert reach(made, bar).startswith("**beyond envtrio's records as they are**: ")
    assert "one writing of the arrays to memory of their own and nothing else is at 4x" in reach(made, bar)


@pytest.mark.parametrize(
    "bar",
    [
        pytest.param(FASTER, id="never-played"),
        pytest.param(Bar("small", "client_cpu_ms", Kind.AT_MOST, 0.1), id="no-client-there"),
        pytest.param(Bar("small", "worker_cpu_ms", Kind.ABSOLUTE, 0.1), id="no-ratio"),
    ],
)
def test_where_nothing_was_measured_nothing_is_said(bar: Bar) -> None:
    made = results(peer=rates(10), ours=rates(20))
    assert reach(made, bar) == ""
    assert headroom(made) == ""


def test_the_table_has_a_row_a_part_and_tells_of_rounds_that_failed() -> None:
    text = headroom(results(peer=rates(10, 10), alone=[*rates(200), "its process has ended"]))
    assert "| the environment alone: its arrays are cut, copied, dropped | 200 (200 to 200) | 20x" in text
    assert text.splitlines()[3].endswith("| - | - | 0 (0 to 0) |")
    assert "**1 rounds of the environment alone failed**: its process has ended" in text
    heads, rule = text.splitlines()[1:3]
    assert heads.count("|") == rule.count("|")

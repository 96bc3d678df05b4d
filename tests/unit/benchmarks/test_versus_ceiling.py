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
    assert figures.keys() == {"seconds", "episodes_per_s", "worker_cpu_ms"}
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
    one += [(CEILING, part, 4) for part in (ALONE, TRACED, OVERWRITTEN, WRITTEN)]
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


def rates(*values: float) -> list[dict[str, float | None] | str]:
    return [{"episodes_per_s": value} for value in values]


def test_a_bar_is_out_of_reach_where_no_round_meets_it_by_the_least_row_that_says_so() -> None:
    made = results(peer=rates(10, 10), ours=rates(20, 20), alone=rates(90, 90), traced=rates(70, 79))
    assert reach(made, FASTER) == (
        "**out of reach**: with no pool at all, the environment and its trace alone is at 7.45x"
    )
    made = results(peer=rates(10), ours=rates(20), alone=rates(70), traced=rates(60))
    assert "the environment alone is at 7x" in reach(made, FASTER)


def test_a_bar_that_the_ceiling_meets_at_times_is_hardly_in_reach() -> None:
    made = results(peer=rates(10, 10, 10), ours=rates(20, 20, 20), alone=rates(81, 70, 60))
    assert reach(made, FASTER).startswith("**hardly in reach**: with no pool")
    assert reach(made, FASTER).endswith("is at 7x, and meets the bar in 1 of 3 rounds")


@pytest.mark.parametrize(("cpu_ms", "told"), [(15.0, "**out of reach**: "), (12.0, "not told: ")])
def test_a_ceiling_that_others_lowered_judges_no_bar(cpu_ms: float, told: str) -> None:
    alone: list[dict[str, float | None] | str] = [{"episodes_per_s": 70.0, "worker_cpu_ms": cpu_ms}]
    assert reach(results(peer=rates(10), ours=rates(20), alone=alone), FASTER).startswith(told)


def test_of_a_bar_in_reach_it_says_what_is_left_for_a_pool() -> None:
    made = results(peer=rates(10), ours=rates(40), alone=rates(1000), traced=rates(500), encoded=rates(100))
    assert reach(made, FASTER) == (
        "not out of reach: with no pool at all, the environment and its trace alone, encoded once, is at "
        "10x; that leaves a pool 2.5 ms an episode, and envtrio adds 15 ms"
    )
    made = Results(WORKLOADS["small"])
    for side, cpu in ((PEER, 10.0), (OURS, 4.0), (ALONE, 1.0)):
        made.add(side, {"worker_cpu_ms": cpu})
    assert reach(made, CHEAPER).endswith(
        "is at 0.1x; that leaves a pool 2 ms an episode, and envtrio adds 3 ms"
    )


def test_memory_of_their_own_is_what_only_fetched_arrays_need() -> None:
    rows = {"alone": 999.0, "traced": 900.0, "over": 130.0, "written": 40.0}
    made = results("r3-64", peer=rates(10), ours=rates(20), fetched=rates(15))
    for name, rate in rows.items():
        made.rounds |= results("r3-64", **{name: rates(rate)}).rounds
    kept = Bar("r3-64", "episodes_per_s", Kind.AT_LEAST, 12.0)
    fetched = Bar("r3-64", "episodes_per_s", Kind.AT_LEAST, 5.0, FETCHED)
    assert "one writing of the arrays alone is at 13x" in reach(made, kept)
    assert reach(made, fetched).startswith("**out of reach**")


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
    assert "**1 rounds of the environment alone failed**: its process has ended" in text
    heads, rule = text.splitlines()[1:3]
    assert heads.count("|") == rule.count("|")

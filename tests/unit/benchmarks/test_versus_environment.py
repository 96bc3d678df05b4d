"""Our environment plays the shape that a task asks for, node for node and call for call."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.versus.banks import ENDPOINT, MODEL, PROMPT, Banks
from benchmarks.versus.environment import VersusEnvironment
from benchmarks.versus.notes import ABORTED, BEGAN, ENDED, VARIABLE, Notes
from benchmarks.versus.workloads import SETTLED, Shape
from env_worker.domain import Episode, SamplingParams
from env_worker.envs.base import Context
from env_worker.model.simulated import SimulatedModel

if TYPE_CHECKING:
    from pathlib import Path

ROUTED = Shape(3, 15, layers=2, top_k=4)


def context(shape: Shape, number: int = 7) -> Context:
    task = {"number": number, "prompt": PROMPT, **asdict(shape)}
    return Context("run", task, SamplingParams(), SimulatedModel(), Episode("episode", "versus", task))


async def test_plays_the_shape() -> None:
    played = context(ROUTED)
    await VersusEnvironment().run(played)
    [trace] = played.episode.traces
    assert [len(node.token_ids) for node in trace.nodes] == [7, 8] * 3
    assert [len(node.logprobs) for node in trace.nodes] == [0, 8] * 3
    assert [node.message.role for node in trace.nodes] == ["user", "assistant", *["tool", "assistant"] * 2]
    assert [node.parent for node in trace.nodes] == [None, 0, 1, 2, 3, 4]
    assert [(call.node, call.prompt_tokens, call.completion_tokens) for call in trace.calls] == [
        (1, 7, 8),
        (3, 22, 8),
        (5, 37, 8),
    ]
    assert {(call.model, call.endpoint) for call in trace.calls} == {(MODEL, ENDPOINT)}
    assert (trace.reward, trace.stop_condition, trace.pending) == (1.0, "done", None)
    assert trace.finished_at is not None


@pytest.mark.parametrize("yields", [SETTLED, 0])
async def test_gives_way_as_often_as_the_shape_says(yields: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await VersusEnvironment().run(context(Shape(3, 8, turn_seconds=0.1, yields=yields)))
    assert waits == [*[0] * yields, 0.1] * 3


async def test_the_next_turn_repairs_the_last_row_of_the_one_before() -> None:
    played = context(ROUTED)
    await VersusEnvironment().run(played)
    routing = [node.routed_experts for node in played.episode.traces[0].nodes]
    assert all(array is not None and array.shape[1:] == (2, 4) for array in routing)
    for sampled, asked in ((1, 2), (3, 4)):
        np.testing.assert_array_equal(routing[sampled][-1], routing[asked][0])  # type: ignore[index]


def test_cuts_are_copies_and_texts_have_four_characters_a_token() -> None:
    import random

    banks = Banks(ROUTED)
    arrays = banks.turn(random.Random(0))
    for array in (arrays.asked_ids, arrays.sampled_ids, arrays.logprobs, arrays.sampled_routing):
        assert array is not None
        assert array.base is None
    assert (len(banks.asked_text), len(banks.sampled_text)) == (28, 32)
    assert Banks(Shape(1, 15)).turn(random.Random(0)).asked_routing is None


async def test_notes_how_a_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(tmp_path / "notes")
    monkeypatch.setenv(VARIABLE, str(notes.path))
    environment = VersusEnvironment()
    await environment.run(context(Shape(1, 4), number=1))
    cancelled = asyncio.create_task(environment.run(context(Shape(1, 4, turn_seconds=60.0), number=2)))
    await asyncio.sleep(0)  # its first step
    assert await notes.settled({2, 3}, 0.0) == {2}, "it has begun, and is not over"
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await notes.settled({1, 2, 3}, 0.0) == set()
    assert {word: set(runs) for word, runs in notes.moments.items()} == {
        BEGAN: {1, 2},
        ENDED: {1},
        ABORTED: {2},
    }


def test_a_note_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    notes.read()
    notes.path.write_text("began 1 2.0\nbegan 1")
    notes.read()
    assert notes.moments[BEGAN] == {1: 2.0}
    with notes.path.open("a") as file:
        file.write("0 3.0\n")
    notes.read()
    assert notes.moments[BEGAN] == {1: 2.0, 10: 3.0}

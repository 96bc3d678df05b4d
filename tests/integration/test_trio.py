"""Client, broker and workers together: real tasks, arrays kept where they belong, and every outcome told."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1.delta_pb2 import DeltaStream, TraceDelta
from envtrio.v1.episode_pb2 import Episode

from env_client import EnvClient, EnvError, arrays, check_episode
from env_worker import domain
from env_worker.delta.streamer import DeltaStreamer
from env_worker.envs.base import Context
from env_worker.envs.reasoning_gym import ReasoningGymEnvironment
from env_worker.model.simulated import SimulatedModel
from tests.helpers import oracle
from tests.helpers.history import EnvironmentBegan, EnvironmentEnded, KeepBegan
from tests.helpers.pools import broker_subject
from tests.helpers.recording_hook import crc_of_arrays
from tests.helpers.snapshot import Snapshot
from tests.helpers.stream_view import merged, without_times
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.pools import Subject
    from tests.helpers.recorded_client import RecordedClient

QUESTIONS: list[dict[str, Any]] = [
    {"dataset": dataset, "seed": seed, "index": seed, "max_tries": 4}
    for dataset in ("chain_sum", "leg_counting", "spell_backward")
    for seed in (0, 3)
]


async def played_here(task: dict[str, Any]) -> domain.Episode:
    """The episode that a worker with default settings plays for this task, played in this process."""
    episode = domain.Episode("here", "reasoning-gym", task)
    model = SimulatedModel(seed=0, accuracy=0.6)
    sampling = domain.SamplingParams()
    context = Context(request_id="here", task=task, sampling=sampling, model=model, episode=episode)
    await ReasoningGymEnvironment().run(context)
    episode.finish()
    return episode


def source_of(episode: domain.Episode) -> Episode:
    """The same as a message, by way of a stream of its own."""
    streamer = DeltaStreamer(episode)
    messages = []
    while (data := streamer.next_message()) is not None:
        messages.append(DeltaStream.FromString(data))
        streamer.commit()
    traces, _ = merged(messages)
    return Episode(traces=[traces[trace.id] for trace in episode.traces])


async def test_reasoning_gym_episodes_and_their_arrays(recorded: RecordedClient, pool: Subject) -> None:
    outcomes = await asyncio.gather(*(recorded.run(task, env="reasoning-gym") for task in QUESTIONS))
    tries = 0
    for run, task, episode in zip(recorded.runs, QUESTIONS, outcomes, strict=True):
        assert isinstance(episode, Episode), episode
        assert episode.head.ok
        check_episode(episode)
        here = await played_here(task)
        [kept] = pool.pipe.history.of(run, KeepBegan)
        assert kept.array_bytes == here.array_bytes > 0
        assert kept.arrays_crc == crc_of_arrays(here)
        arrived, source = without_times(episode), without_times(source_of(here))
        source.head.CopyFrom(arrived.head)
        oracle.assembly_equals_source(arrived, source)
        assert arrays.episode_reward(episode) == here.reward
        tries += int(episode.traces[0].metrics["tries"])
    assert tries > len(QUESTIONS)  # some were answered wrong at first, so that there are turns to stream


async def test_every_run_that_was_asked_for_has_an_outcome(recorded: RecordedClient, pool: Subject) -> None:
    scripted = {"script": [["trace"], ["say", 1], ["forever"]]}

    async def cancelled() -> str:
        run = new_id()
        task = asyncio.create_task(recorded.run(scripted, env="scripted", request_id=run))
        await pool.pipe.seen(run, EnvironmentBegan)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Nobody but the client told the worker.
        assert await pool.pipe.seen(run, EnvironmentEnded)
        return "cancelled"

    async def outcome(task: Any, **arguments: Any) -> str:
        found = await recorded.run(task, **arguments)
        if isinstance(found, EnvError):
            return found.reason or found.code
        return "ok" if found.head.ok else "failed episode"

    asked = [
        *(outcome(question, env="reasoning-gym") for question in QUESTIONS),
        *(outcome({"turns": 4, "layers": 2, "seed": seed}) for seed in range(6)),
        *(outcome({"turns": 4, "fail_at_turn": turn}) for turn in range(4)),
        *(outcome({"turns": -count}) for count in range(4)),
        *(outcome({"turns": 1}, group_id="raise-in-keep") for _ in range(4)),
        *(outcome({"script": [["raise", "early"]]}, env="scripted") for _ in range(2)),
        *(outcome({"turns": 1}, env="no-such") for _ in range(2)),
        *(outcome(scripted, env="scripted", timeout=1.0) for _ in range(2)),
        *(cancelled() for _ in range(4)),
    ]
    told = Counter(await asyncio.gather(*asked))
    deadlines = told.pop("DEADLINE", 0) + told.pop("DEADLINE_EXCEEDED", 0)
    assert deadlines == 2
    assert told == {
        "ok": 12,
        "failed episode": 4,
        "INVALID_TASK": 4,
        "HOOK_FAILED": 4,
        "ENVIRONMENT_FAILED": 2,
        "ENVIRONMENT_NOT_FOUND": 2,
        "cancelled": 4,
    }
    oracle.outcomes_add_up(await pool.pipe.at_rest(recorded.runs), 34)


async def test_deltas_are_seen_as_they_land(recorded: RecordedClient) -> None:
    seen: list[TraceDelta] = []

    def see(delta: TraceDelta) -> None:
        seen.append(TraceDelta.FromString(delta.SerializeToString()))

    episode = await recorded.run({"turns": 8, "layers": 3}, on_delta=see)
    assert isinstance(episode, Episode)
    traces, _ = merged([DeltaStream(deltas=seen)])
    assert list(traces.values()) == list(episode.traces)
    assert [delta.seq for delta in seen] == list(range(len(seen)))


async def test_the_trio_leaves_nothing_behind(tmp_path: Path) -> None:
    before = Snapshot.take()
    async with broker_subject(tmp_path) as pool, EnvClient(pool.address, env="synthetic") as client:
        await asyncio.gather(*(client.run({"turns": 2, "layers": 2}) for _ in range(8)))
        async with client.stream({"turns": 2, "turn_seconds": 600.0}) as stream:
            await anext(stream)
        assert len(Snapshot.take().processes - before.processes) == 3
    oracle.nothing_left_behind(before, Snapshot.take())

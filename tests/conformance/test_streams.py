"""What a run streams: turn by turn, each thing once, and never a training array."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tests.helpers.history import EnvironmentBegan, KeepBegan
from tests.helpers.stream_view import without_times
from tests.helpers.stub_client import MIB, new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.gate import Gate
    from tests.helpers.pools import Subject
    from tests.helpers.stub_client import StubClient


async def test_a_synthetic_episode_arrives_whole(client: StubClient, subject: Subject) -> None:
    run = new_id()
    task = '{"turns": 10,  "tokens_per_turn": 40, "layers": 4, "top_k": 2, "seed": 3, "branches": 2}'
    outcome = await client.run(task, request_id=run, group_id="a group", owner="an owner")
    episode = outcome.episode
    assert episode.head.ok
    assert not episode.head.errors
    assert episode.head.environment == "synthetic"
    assert episode.head.task_json == task  # byte for byte
    assert episode.head.group_id == "a group"
    assert episode.head.episode_id not in ("", run)
    assert len(episode.head.worker_instance) == 32
    [trace] = episode.traces
    assert len(trace.nodes) == 20
    assert len(trace.calls) == 10
    assert all(call.simulated and call.model == "simulated" for call in trace.calls)
    assert trace.ok
    assert trace.metrics["tokens"] == 400.0
    assert [name for name, reward in trace.rewards.items() if reward.HasField("value")] == ["synthetic"]
    for index, node in enumerate(trace.nodes):
        tokens, mask = np.frombuffer(node.token_ids, "<i4"), np.frombuffer(node.mask, bool)
        assert len(mask) == len(tokens)
        assert len(np.frombuffer(node.logprobs, "<f4")) == (mask.sum() if node.sampled else 0)
        assert not node.HasField("parent") or node.parent < index
    [kept] = client.history.of(run, KeepBegan)
    assert kept.episode_id == episode.head.episode_id
    assert kept.array_bytes > 400 * 4 * 2
    assert kept.nodes == 20


async def test_the_stream_goes_turn_by_turn(client: StubClient, new_gate: Callable[[], Gate]) -> None:
    gate = new_gate()
    wait = ["wait", str(gate.path)]
    script = [["trace"], ["pending", "well?"], wait, ["say", 5], wait, ["say", 6], wait]
    run = client.start({"script": script}, environment="scripted")
    [opening] = (await run.next()).deltas
    assert opening.append.header.trace_id == opening.trace_id
    assert [part.text for part in opening.pending.messages[0].content] == ["well?"]
    assert not opening.append.nodes
    gate.open()
    [turn] = (await run.next()).deltas
    assert turn.seq == 1
    assert turn.HasField("pending")  # present and empty: the preview is dropped
    assert not turn.pending.messages
    assert [part.text for part in turn.append.nodes[0].message.content] == ["sssss"]
    gate.open()
    [turn] = (await run.next()).deltas
    assert turn.seq == 2
    assert turn.append.nodes[0].parent == 0
    assert turn.append.nodes[0].HasField("parent")
    gate.open()
    outcome = await run.finish()
    assert len(outcome.episode.traces[0].nodes) == 2


async def test_arrays_change_nothing_on_the_wire(client: StubClient) -> None:
    task = {"turns": 6, "tokens_per_turn": 500, "top_k": 2, "seed": 11}
    without = await client.run({**task, "layers": 0})
    with_arrays = await client.run({**task, "layers": 9})
    kept = [client.history.of(outcome.run, KeepBegan)[0] for outcome in (without, with_arrays)]
    assert kept[0].array_bytes == 0
    assert kept[1].array_bytes > 6 * 500 * 9 * 2
    plain, other = without_times(without.episode), without_times(with_arrays.episode)
    assert plain.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
    # What differs between the streams is times, ids, and how they were cut into messages: on a busy machine
    # some previews are over before they leave.
    assert abs(without.received_bytes - with_arrays.received_bytes) < kept[1].array_bytes / 10
    appended = [0, 0]
    for number, outcome in enumerate((without, with_arrays)):
        for delta in (delta for message in outcome.messages for delta in message.deltas):
            appended[number] += delta.append.ByteSize()
            assert delta.ByteSize() - delta.append.ByteSize() - delta.pending.ByteSize() < 100, "a stranger"
    assert abs(appended[0] - appended[1]) < 100, "they carry the same, previews aside"


async def test_the_same_seed_gives_the_same_episode_wherever_it_runs(client: StubClient) -> None:
    outcomes = [await client.run({"turns": 3, "seed": 5, "layers": 3}) for _ in range(4)]
    plain = {without_times(o.episode).SerializeToString(deterministic=True) for o in outcomes}
    assert len(plain) == 1
    kept = [client.history.of(o.run, KeepBegan)[0] for o in outcomes]
    assert len({record.arrays_crc for record in kept}) == 1
    assert kept[0].arrays_crc != 0


async def test_another_seed_gives_another_episode(client: StubClient) -> None:
    one, other = [await client.run({"turns": 1, "seed": seed}) for seed in (1, 2)]
    assert without_times(one.episode) != without_times(other.episode)


async def test_a_long_episode_comes_in_pieces(client: StubClient) -> None:
    outcome = await client.run({"turns": 40, "tokens_per_turn": 20_000, "layers": 0})
    sizes = [message.ByteSize() for message in outcome.messages]
    assert sum(sizes) > 6 * MIB
    # Deltas are split at node borders near 1 MiB; a node of this task takes at most 0.3 MiB.
    assert max(sizes) < 1.5 * MIB
    assert len(outcome.episode.traces[0].nodes) == 80


async def test_a_failed_episode_is_kept_and_replied(client: StubClient) -> None:
    outcome = await client.run({"turns": 5, "fail_at_turn": 3, "layers": 2})
    episode = outcome.episode
    assert not episode.head.ok
    assert [error.type for error in episode.head.errors] == ["SyntheticFailureError"]
    assert "turn 3" in episode.head.errors[0].message
    assert "synthetic.py" in episode.head.errors[0].traceback
    assert len(episode.head.errors[0].traceback) <= 16 * 1024
    [trace] = episode.traces
    assert len(trace.nodes) == 6
    assert not trace.rewards  # a failure is never a reward of zero
    [kept] = client.history.of(outcome.run, KeepBegan)
    assert not kept.ok
    assert kept.array_bytes > 0


async def test_a_failure_before_the_first_trace_is_no_episode(client: StubClient) -> None:
    outcome = await client.run({"script": [["raise", "out of order"]]}, environment="scripted")
    assert (outcome.code, outcome.reason) == ("INTERNAL", "ENVIRONMENT_FAILED")
    assert "out of order" in outcome.message
    assert client.history.of(outcome.run, EnvironmentBegan)
    assert not client.history.of(outcome.run, KeepBegan)


async def test_what_the_hook_leaves_in_info_streams_with_the_reply(client: StubClient) -> None:
    outcome = await client.run({"turns": 2}, group_id="info=10")
    [trace] = outcome.episode.traces
    assert json.loads(trace.info_json["kept"]) == "k" * 10

"""Sizes beyond the limit, readers that do not read, and many runs at once: each run's trouble is its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from tests.helpers import oracle
from tests.helpers.history import DiscardReturned, EnvironmentEnded
from tests.helpers.snapshot import open_files
from tests.helpers.stub_client import MIB, Outcome, StubClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.gate import Gate
    from tests.helpers.pools import Subject

LIMIT = str(64 * MIB)


async def test_a_node_beyond_the_limit_fails_its_own_run(
    client: StubClient, subject: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    script = [["trace"], ["say", 1], ["wait", str(gate.path)], ["say", 2]]
    other = client.start({"script": script}, environment="scripted")
    await other.next()
    huge = [["trace"], ["say", 1], ["say", 64 * MIB], ["say", 1]]
    outcome = await client.run({"script": huge}, environment="scripted")
    assert (outcome.code, outcome.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
    assert outcome.metadata["limit"] == LIMIT
    assert LIMIT in outcome.message
    assert "nodes[1]" in outcome.metadata["field"]
    assert not any(message.HasField("reply") for message in outcome.messages)
    await subject.pipe.seen(outcome.run, EnvironmentEnded)
    gate.open()
    assert len((await other.finish()).episode.traces[0].nodes) == 2


async def test_a_node_within_the_limit_passes(client: StubClient) -> None:
    outcome = await client.run({"script": [["trace"], ["say", 62 * MIB]]}, environment="scripted")
    assert len(outcome.episode.traces[0].nodes[0].message.content[0].text) == 62 * MIB


async def test_an_info_beyond_the_limit_discards_what_was_kept(client: StubClient, subject: Subject) -> None:
    outcome = await client.run({"turns": 1}, group_id=f"info={64 * MIB}")
    assert (outcome.code, outcome.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
    assert "info" in outcome.metadata["field"]
    assert outcome.metadata["limit"] == LIMIT
    await subject.pipe.seen(outcome.run, DiscardReturned)
    assert (await client.run({"turns": 1})).code == "OK"


async def test_a_reader_that_does_not_read_holds_up_no_other(client: StubClient, subject: Subject) -> None:
    script = [["trace"], *([["say", MIB]] * 48)]
    clogged, given_up = (
        client.start({"script": script}, environment="scripted", timeout=50.0) for _ in range(2)
    )
    for run in (clogged, given_up):
        await run.next()
        await subject.pipe.seen(run.run, EnvironmentEnded)

    async def one(seed: int) -> Outcome:
        async with StubClient(subject.address, subject.pipe.history, client.transport) as other:
            outcome = await other.run({"turns": 20, "seed": seed})
            client.runs += other.runs
            client.asked += other.asked
            return outcome

    outcomes = await asyncio.gather(*(one(seed) for seed in range(8)))
    outcomes += await asyncio.gather(*(one(seed) for seed in range(8)))
    assert [outcome.code for outcome in outcomes] == ["OK"] * 16
    # What is not read stands still at the worker instead of growing in a buffer on the way: no reply left.
    assert await client.cancel(given_up.run) == "ABORTED"
    assert (await given_up.finish()).reason == "CANCEL_REQUESTED"
    outcome = await clogged.finish()
    assert len(outcome.episode.traces[0].nodes) == 48
    assert outcome.received_bytes > 48 * MIB


async def test_32_runs_at_once_have_32_outcomes(client: StubClient, subject: Subject) -> None:
    async def cancelled() -> Outcome:
        run = client.start({"script": [["trace"], ["say", 1], ["forever"]]}, environment="scripted")
        await run.next()
        await client.cancel(run.run)
        return await run.finish()

    async def taken_back() -> Outcome:
        outcome = await client.run({"turns": 2, "layers": 3})
        assert await client.cancel(outcome.run) == "DISCARDED"
        return outcome

    kinds = [
        lambda: client.run({"turns": 5, "layers": 4}),
        lambda: client.run({"turns": 5, "fail_at_turn": 2}),
        lambda: client.run({"turns": -1}),
        lambda: client.run({"turns": 1}, group_id="raise-in-keep"),
        lambda: client.run({"script": [["raise", "early"]]}, environment="scripted"),
        lambda: client.run({"turns": 5, "turn_seconds": 600.0}, timeout=1.0),
        cancelled,
        taken_back,
    ]
    outcomes = await asyncio.gather(*(kind() for kind in kinds for _ in range(4)))
    assert Counter(
        (outcome.code, outcome.reason) for outcome in outcomes if outcome.code != "DEADLINE_EXCEEDED"
    ) == {
        ("OK", ""): 12,
        ("INVALID_ARGUMENT", "INVALID_TASK"): 4,
        ("INTERNAL", "HOOK_FAILED"): 4,
        ("INTERNAL", "ENVIRONMENT_FAILED"): 4,
        ("CANCELLED", "CANCEL_REQUESTED"): 4,
    }
    assert sum(outcome.code == "OK" and not outcome.episode.head.ok for outcome in outcomes) == 4
    for outcome in outcomes:
        if outcome.code == "DEADLINE_EXCEEDED":
            assert await client.cancel(outcome.run) == "ABORTED"
    oracle.outcomes_add_up(await subject.pipe.at_rest(client.runs), 32)


async def test_runs_leave_no_open_file_behind(client: StubClient, subject: Subject) -> None:
    await client.run({"turns": 1})
    before = open_files(subject.server.pid)
    await asyncio.gather(*(client.run({"turns": 3}) for _ in range(16)))
    await client.describe()
    assert not open_files(subject.server.pid) - before

"""Cancel, deadline and lost callers: what is kept is delivered or discarded, and Cancel says which."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.helpers.history import (
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    EnvironmentBegan,
    EnvironmentEnded,
    KeepBegan,
    KeepRaised,
    KeepReturned,
)
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.gate import Gate
    from tests.helpers.pools import Subject
    from tests.helpers.stub_client import OpenRun, StubClient

FOREVER = {"script": [["trace"], ["say", 3], ["forever"]]}
ONE_TURN = {"turns": 1, "layers": 2}


async def live(client: StubClient, timeout: float | None = 30.0) -> OpenRun:
    """A run that has streamed something and will never end by itself."""
    run = client.start(FOREVER, environment="scripted", timeout=timeout)
    await run.next()
    return run


async def test_a_live_run_is_aborted(client: StubClient, subject: Subject) -> None:
    run = await live(client)
    assert await client.cancel(run.run) == "ABORTED"
    outcome = await run.finish()
    assert (outcome.code, outcome.reason) == ("CANCELLED", "CANCEL_REQUESTED")
    ended = await subject.pipe.seen(run.run, EnvironmentEnded)
    assert isinstance(ended, EnvironmentEnded)
    assert ended.how == "cancelled"
    assert await client.cancel(run.run) == "ABORTED"
    assert await client.cancel(run.run) == "ABORTED"
    assert not client.history.of(run.run, KeepBegan)


async def test_a_cancel_touches_no_other_run(client: StubClient) -> None:
    one, other = await live(client), await live(client)
    assert await client.cancel(one.run) == "ABORTED"
    assert await client.cancel("x" * 40) == "INVALID_ARGUMENT INVALID_REQUEST_ID"
    assert await client.cancel(new_id()) == "REMEMBERED"
    assert (await one.finish()).code == "CANCELLED"
    assert (await client.run(ONE_TURN)).code == "OK"
    assert not client.history.of(other.run, EnvironmentEnded)
    assert await client.cancel(other.run) == "ABORTED"
    assert (await other.finish()).reason == "CANCEL_REQUESTED"


async def test_a_late_cancel_discards(client: StubClient, subject: Subject) -> None:
    outcome = await client.run(ONE_TURN)
    assert outcome.code == "OK"
    assert await client.cancel(outcome.run) == "DISCARDED"
    await subject.pipe.seen(outcome.run, DiscardReturned)
    [discard] = client.history.of(outcome.run, DiscardBegan)
    assert discard.episode_id == outcome.episode.head.episode_id
    assert discard.nodes == 0  # the worker holds the head, the trace ids and the infos only
    assert await client.cancel(outcome.run) == "DISCARDED"


async def test_cancels_at_once_have_one_answer_and_one_discard(client: StubClient) -> None:
    outcome = await client.run(ONE_TURN)
    answers = await asyncio.gather(*(client.cancel(outcome.run) for _ in range(8)))
    assert answers == ["DISCARDED"] * 8


async def test_a_failed_episode_can_be_taken_back_too(client: StubClient) -> None:
    outcome = await client.run({"turns": 2, "fail_at_turn": 1})
    assert not outcome.episode.head.ok
    assert await client.cancel(outcome.run) == "DISCARDED"


async def test_a_cancel_that_overtakes_its_run_is_remembered(client: StubClient) -> None:
    run = new_id()
    assert await client.cancel(run) == "REMEMBERED"
    assert await client.cancel(run) == "REMEMBERED"
    outcome = await client.run(FOREVER, request_id=run, environment="scripted")
    assert (outcome.code, outcome.reason) == ("CANCELLED", "CANCEL_REQUESTED")
    assert not client.history.of(run, EnvironmentBegan)


async def test_a_cancel_while_keep_runs_waits_for_nobody(
    client: StubClient, subject: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    run = client.start(ONE_TURN, group_id=f"gate={gate.path}")
    await subject.pipe.seen(run.run, KeepBegan)
    assert await client.cancel(run.run) == "ABORTED"
    outcome = await run.finish()
    assert outcome.reason == "CANCEL_REQUESTED"
    assert not client.history.of(run.run, KeepReturned, DiscardBegan)
    gate.open()
    await subject.pipe.seen(run.run, DiscardReturned)
    assert await client.cancel(run.run) == "ABORTED"


async def test_keep_raises(client: StubClient, subject: Subject) -> None:
    outcome = await client.run(ONE_TURN, group_id="raise-in-keep")
    assert (outcome.code, outcome.reason) == ("INTERNAL", "HOOK_FAILED")
    assert not any(message.HasField("reply") for message in outcome.messages)
    await subject.pipe.seen(outcome.run, DiscardReturned)
    assert client.history.of(outcome.run, KeepRaised)
    assert await client.cancel(outcome.run) == "ABORTED"


async def test_discard_raises(client: StubClient, subject: Subject) -> None:
    outcome = await client.run(ONE_TURN, group_id="raise-in-discard")
    assert await client.cancel(outcome.run) == "DISCARDED"
    await subject.pipe.seen(outcome.run, DiscardRaised)
    assert await client.cancel(outcome.run) == "DISCARDED"
    assert (await client.run(ONE_TURN)).code == "OK"


async def test_the_deadline_of_a_live_run(client: StubClient, subject: Subject) -> None:
    run = await live(client, timeout=1.0)
    outcome = await run.finish()
    assert outcome.code == "DEADLINE_EXCEEDED"
    if client.transport == "session":  # of a Run the caller's own gRPC may be first, and gives no reason
        assert outcome.reason == "DEADLINE"
    ended = await subject.pipe.seen(run.run, EnvironmentEnded)
    assert isinstance(ended, EnvironmentEnded)
    assert ended.how == "cancelled"
    assert await client.cancel(run.run) == "ABORTED"


async def test_the_deadline_while_keep_runs(
    client: StubClient, subject: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    run = client.start(ONE_TURN, group_id=f"gate={gate.path}", timeout=2.0)
    await subject.pipe.seen(run.run, KeepBegan)
    assert (await run.finish()).code == "DEADLINE_EXCEEDED"
    # The worker may hear of the deadline later than the caller; the Cancel that a caller owes settles it.
    assert await client.cancel(run.run) == "ABORTED"
    gate.open()
    await subject.pipe.seen(run.run, DiscardReturned)


async def test_a_caller_that_hangs_up_ends_its_run(client: StubClient, subject: Subject) -> None:
    run = await live(client)
    await run.drop()
    ended = await subject.pipe.seen(run.run, EnvironmentEnded)
    assert isinstance(ended, EnvironmentEnded)
    assert ended.how == "cancelled"
    assert await client.cancel(run.run) == "ABORTED"


async def test_a_caller_that_hangs_up_while_keep_runs(
    client: StubClient, subject: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    run = client.start(ONE_TURN, group_id=f"gate={gate.path}")
    await subject.pipe.seen(run.run, KeepBegan)
    await run.drop()
    assert await client.cancel(run.run) == "ABORTED"
    gate.open()
    await subject.pipe.seen(run.run, DiscardReturned)


async def test_a_connection_that_breaks_ends_its_run(client: StubClient, subject: Subject) -> None:
    run = await live(client)
    await client.close()
    assert (await run.finish()).code == "CANCELLED"
    ended = await subject.pipe.seen(run.run, EnvironmentEnded)
    assert isinstance(ended, EnvironmentEnded)
    assert ended.how == "cancelled"


async def test_an_environment_that_blocks_its_loop_holds_up_no_cancel(
    client: StubClient, subject: Subject, new_gate: Callable[[], Gate]
) -> None:
    gate = new_gate()
    run = client.start({"script": [["trace"], ["say", 1], ["block", str(gate.path)]]}, environment="scripted")
    await run.next()
    assert (await client.describe()).role == subject.name
    assert await client.cancel(run.run) == "ABORTED"
    assert (await run.finish()).reason == "CANCEL_REQUESTED"
    assert not client.history.of(run.run, EnvironmentEnded)
    gate.open()
    await subject.pipe.seen(run.run, EnvironmentEnded)

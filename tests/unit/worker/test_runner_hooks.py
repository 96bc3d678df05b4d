"""The contract of keep and discard, as a Runner carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from envtrio.v1 import delta_pb2

from env_worker.arrays.errors import ArrayBudgetExceededError
from env_worker.domain import Message
from env_worker.hook import set_episode_hook
from env_worker.status import Refusal
from tests.helpers.history import DiscardBegan, KeepBegan, Passed
from tests.helpers.runner_harness import HaltingHook, Stop, one_turn, running, within
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Harness


def replies(harness: Harness, run: str) -> list[delta_pb2.DeltaStream]:
    return [delta_pb2.DeltaStream.FromString(record.data) for record in harness.history.of(run, Passed)]


async def with_arrays(context: Context) -> None:
    trace = context.new_trace()
    trace.add_node(
        Message.assistant("yes"), [1, 2], mask=[False, True], logprobs=[-0.5], sampled=True,
        routed_experts=np.ones((2, 3, 4), np.uint8),
    )  # fmt: skip


async def test_keep_sees_the_arrays_and_the_worker_forgets_them_when_it_returns() -> None:
    async with running() as harness:
        seen: list[Episode] = []
        sizes: list[int] = []
        caller = harness.ask(with_arrays)

        def keep(episode: Episode) -> None:
            seen.append(episode)
            sizes.append(episode.array_bytes)
            episode.traces[0].info["reference"] = {"key": 7}

        harness.hook.in_keep[caller.id] = keep
        assert await caller.read_on() == "OK"
        assert sizes == [24]
        assert seen[0].array_bytes == 0
        last = replies(harness, caller.id)[-1]
        assert last.deltas[-1].append.info_json["reference"] == '{"key":7}'
        assert last.reply.head.ok


async def test_a_late_discard_gets_head_ids_and_infos_without_nodes() -> None:
    async with running() as harness:
        caller = harness.ask(with_arrays)

        def keep(episode: Episode) -> None:
            episode.traces[0].info["reference"] = [1]

        harness.hook.in_keep[caller.id] = keep
        assert await caller.read_on() == "OK"
        assert harness.cancel(caller.id) == "DISCARDED"
        await harness.at_rest()
        (late,) = harness.hook.discarded
        kept = harness.history.of(caller.id, KeepBegan)[0]
        assert (late.id, late.request_id, late.ok) == (kept.episode_id, caller.id, True)
        assert [(trace.id, dict(trace.info), len(trace.nodes)) for trace in late.traces] == [
            ("trace-0", {"reference": [1]}, 0)
        ]


async def test_before_the_reply_discard_gets_the_episode_that_keep_saw() -> None:
    async with running() as harness:
        kept: list[Episode] = []
        stop = Stop()
        caller = harness.ask(one_turn)

        def keep(episode: Episode) -> None:
            kept.append(episode)
            stop.block()

        harness.hook.in_keep[caller.id] = keep
        await stop.reached()
        harness.cancel(caller.id)
        stop.go()
        await harness.at_rest()
        assert await caller.read_on() == "CANCEL_REQUESTED"
        assert harness.hook.discarded[0] is kept[0]


@pytest.mark.parametrize(
    "error", [ValueError("no room"), SystemExit(1), StopIteration(), KeyboardInterrupt()]
)
async def test_a_keep_that_raises_is_discarded_and_fails_its_run_alone(error: BaseException) -> None:
    async with running() as harness:

        def keep(_: Episode) -> None:
            raise error

        caller, other = harness.ask(one_turn), harness.ask(one_turn)
        harness.hook.in_keep[caller.id] = keep
        assert await caller.read_on() == "HOOK_FAILED"
        assert type(error).__name__ in caller.port.ending.message  # type: ignore[union-attr]
        assert await other.read_on() == "OK"
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


@pytest.mark.parametrize(
    ("error", "lines"), [(ArrayBudgetExceededError("they do not fit"), 1), (RuntimeError("a fault"), 0)]
)
async def test_arrays_that_are_not_kept_are_no_fault_and_one_line_of_log(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as harness:

        def keep(_: Episode) -> None:
            raise error

        caller = harness.ask(one_turn)
        harness.hook.in_keep[caller.id] = keep
        assert await caller.read_on() == "HOOK_FAILED"
        await harness.at_rest()
    [told] = [record.getMessage() for record in caplog.records if "keep raised" in record.getMessage()]
    assert ("Traceback" not in told) is bool(lines)
    assert str(error) in told.splitlines()[-1]


async def test_a_discard_that_raises_is_counted_and_not_tried_again() -> None:
    async with running() as harness:

        def discard(_: Episode) -> None:
            raise OSError("disk")

        caller = harness.ask(one_turn)
        harness.hook.in_discard[caller.id] = discard
        assert await caller.read_on() == "OK"
        assert harness.cancel(caller.id) == "DISCARDED"
        await harness.at_rest()
        assert harness.cancel(caller.id) == "DISCARDED"
        assert harness.runner.counters["discard_failures"] == 1
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


async def test_the_end_of_the_window_makes_it_final() -> None:
    async with running(late_cancel_seconds=60) as harness:
        caller = harness.ask(one_turn)
        assert await caller.read_on() == "OK"
        harness.clock.advance(59)
        harness.runner.expire()
        assert harness.runner.table.open_windows == 1
        harness.clock.advance(1)
        harness.runner.expire()
        assert harness.runner.table.open_windows == 0
        assert harness.cancel(caller.id) == "TOO_LATE"
        await within(harness.runner.wait_windows())


async def test_a_brokered_window_waits_for_an_acknowledged_heartbeat_at_most_ten_windows() -> None:
    async with running(late_cancel_seconds=60, broker="127.0.0.1:1") as harness:
        callers = [harness.ask(one_turn) for _ in range(2)]
        assert await callers[0].read_on() == "OK"
        harness.clock.advance(61)
        assert await callers[1].read_on() == "OK"
        harness.runner.expire()
        assert harness.runner.table.open_windows == 2, "no heartbeat was acknowledged"
        harness.runner.heartbeat_acknowledged(harness.clock() - 2)
        assert harness.runner.table.open_windows == 2, "that heartbeat left before the window's end"
        harness.runner.heartbeat_acknowledged(harness.clock())
        assert harness.runner.table.open_windows == 1
        harness.clock.advance(599)
        harness.runner.expire()
        assert harness.runner.table.open_windows == 1
        harness.clock.advance(1)
        harness.runner.expire()
        assert harness.runner.table.open_windows == 0


async def test_after_a_registration_heartbeats_close_no_window_until_cancels_had_their_time() -> None:
    async with running(late_cancel_seconds=60, broker="127.0.0.1:1") as harness:
        callers = [harness.ask(one_turn) for _ in range(2)]
        for caller in callers:
            assert await caller.read_on() == "OK"
        harness.clock.advance(61)  # the broker stood still
        harness.runner.registered()
        for _ in range(2):
            harness.runner.heartbeat_acknowledged(harness.clock())
            assert harness.runner.table.open_windows == 2
            harness.clock.advance(4.9)
        assert harness.cancel(callers[0].id) == "DISCARDED", "it was under way for so long"
        harness.clock.advance(0.2)
        harness.runner.heartbeat_acknowledged(harness.clock() - 0.2)
        assert harness.runner.table.open_windows == 1, "it left before"
        harness.runner.heartbeat_acknowledged(harness.clock())
        assert harness.runner.table.open_windows == 0
        assert harness.cancel(callers[1].id) == "TOO_LATE"


async def test_however_often_it_registers_ten_windows_are_the_most() -> None:
    async with running(late_cancel_seconds=60, broker="127.0.0.1:1") as harness:
        caller = harness.ask(one_turn)
        assert await caller.read_on() == "OK"
        for _ in range(99):
            harness.clock.advance(6)
            harness.runner.registered()
            harness.runner.heartbeat_acknowledged(harness.clock())
        assert harness.runner.table.open_windows == 1
        harness.clock.advance(6)
        harness.runner.registered()
        harness.runner.expire()
        assert harness.runner.table.open_windows == 0


async def test_what_the_broker_gave_up_is_discarded() -> None:
    async with running() as harness:
        caller = harness.ask(one_turn)
        assert await caller.read_on() == "OK"
        harness.runner.give_up([caller.id, new_id(), "malformed"])
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1
        assert harness.cancel(caller.id) == "DISCARDED"


async def test_a_cancel_that_overtakes_its_run_is_remembered() -> None:
    async with running() as harness:
        run = new_id()
        assert harness.cancel(run) == "REMEMBERED"
        with pytest.raises(Refusal) as refusal:
            harness.ask(one_turn, request_id=run)
        assert refusal.value.reason_name == "CANCEL_REQUESTED"
        assert harness.cancel(run) == "ABORTED"


async def test_without_a_hook_the_arrays_are_dropped_and_the_reply_goes_out() -> None:
    async with running(hooked=False) as harness:
        episodes: list[Episode] = []

        async def play(context: Context) -> None:
            episodes.append(context.episode)
            await with_arrays(context)

        caller = harness.ask(play)
        assert await caller.read_on() == "OK"
        assert episodes[0].array_bytes == 0
        assert harness.cancel(caller.id) == "DISCARDED"


@pytest.fixture
def no_hook_left() -> Iterator[None]:
    yield
    set_episode_hook(None)


@pytest.mark.usefixtures("no_hook_left")
async def test_the_hook_that_kept_is_the_one_that_discards() -> None:
    async with running(hooked=False) as harness:
        first, second = HaltingHook(harness.history), HaltingHook(harness.history)
        set_episode_hook(first)
        caller = harness.ask(one_turn)
        assert await caller.read_on() == "OK"
        set_episode_hook(second)
        other = harness.ask(one_turn)
        assert await other.read_on() == "OK"
        for run in (caller, other):
            assert harness.cancel(run.id) == "DISCARDED"
        await harness.at_rest()
        assert [episode.request_id for episode in first.discarded] == [caller.id]
        assert [episode.request_id for episode in second.discarded] == [other.id]

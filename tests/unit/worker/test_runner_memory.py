"""What a worker holds of its runs: no array once keep returned, no node once it replied, and then less."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_worker.config import WorkerSettings
from env_worker.domain import Message, Node, SamplingMask, TopLogprobs
from env_worker.domain.ledger import State
from env_worker.port import RunPort
from env_worker.runner import Runner
from tests.helpers.clock import FakeClock
from tests.helpers.history import History
from tests.helpers.runner_harness import Caller, Harness, one_turn, running, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from env_worker.domain import Episode, SamplingParams
    from env_worker.envs.base import Context

FIRST_RUNS, RUNS = 1_000, 2_500
TOKENS = 50


async def with_arrays(context: Context) -> None:
    trace = context.new_trace()
    for number in range(2):
        trace.add_node(
            Message.assistant("word " * TOKENS),
            list(range(TOKENS)),
            mask=[True] * TOKENS,
            logprobs=[-0.5] * TOKENS,
            sampled=True,
            parent=number - 1 if number else None,
            routed_experts=np.ones((TOKENS, 4, 2), np.uint8),
            sampling_mask=SamplingMask(np.ones(TOKENS, np.int32), np.ones(TOKENS, np.int32)),
            top_logprobs=TopLogprobs(
                np.ones(TOKENS, np.int32), np.ones(TOKENS, np.float32), np.ones(TOKENS, np.int32)
            ),
        )
    trace.set_reward("reward", 1.0)


async def raising_at_the_end(context: Context) -> None:
    await with_arrays(context)
    nodes = context.episode.traces[0].nodes
    raise ValueError(f"after {len(nodes)} nodes")  # its traceback leads to this frame, and so to all nodes


async def small(context: Context) -> None:
    trace = context.new_trace()
    experts = np.ones((TOKENS, 8, 8), np.uint8)
    trace.add_node(Message.user("word " * TOKENS), list(range(TOKENS)), routed_experts=experts)
    trace.set_reward("reward", 1.0)


def arrays(episode: Episode) -> list[weakref.ref[Any]]:
    found: list[weakref.ref[Any]] = []
    for trace in episode.traces:
        for node in trace.nodes:
            assert node.sampling_mask is not None
            assert node.top_logprobs is not None
            assert node.routed_experts is not None
            found += map(weakref.ref, (node.sampling_mask.ids, node.top_logprobs.ids, node.routed_experts))
    return found


def nodes_alive() -> int:
    gc.collect()
    return sum(type(candidate) is Node for candidate in gc.get_objects())


async def test_after_keep_returned_the_worker_holds_no_array() -> None:
    async with running() as harness:
        seen: list[weakref.ref[Any]] = []
        alive_in_keep: list[int] = []
        caller = harness.ask(with_arrays)

        def keep(episode: Episode) -> None:
            seen.extend(arrays(episode))
            gc.collect()
            alive_in_keep.append(sum(array() is not None for array in seen))

        harness.hook.in_keep[caller.id] = keep
        assert caller.run is not None
        entry = caller.run.entry
        await caller.write_until(lambda: entry.state is State.KEPT)
        gc.collect()
        assert alive_in_keep == [6]
        assert [array() for array in seen] == [None] * 6, "and the reply has not left yet"
        assert await caller.read_on() == "OK"


async def test_what_keep_took_lives_on_with_whoever_took_it() -> None:
    async with running() as harness:
        taken: list[Any] = []
        caller = harness.ask(with_arrays)
        harness.hook.in_keep[caller.id] = lambda episode: taken.append(
            episode.traces[0].nodes[0].routed_experts
        )
        assert await caller.read_on() == "OK"
        assert taken[0].sum() == TOKENS * 8


@pytest.mark.parametrize("hooked", [True, False])
async def test_after_the_reply_the_worker_holds_no_node(hooked: bool) -> None:
    async with running(hooked=hooked) as harness:
        before = nodes_alive()
        callers = [harness.ask(play) for play in (with_arrays, raising_at_the_end, one_turn)]
        for caller in callers:
            assert await caller.read_on() == "OK"
        await harness.at_rest()
        await within(harness.runner.wait_until(lambda: harness.runner.slots.held == 0))
        await environments_idle(harness)
        assert harness.runner.table.open_windows == 3
        assert nodes_alive() == before


async def test_an_idle_worker_forgets_what_is_over_by_itself() -> None:
    async with running(late_cancel_seconds=0.02) as harness:
        runner = harness.runner
        caller, cancelled = harness.ask(one_turn), harness.ask(one_turn)
        assert harness.cancel(cancelled.id) == "ABORTED"
        for run in (caller, cancelled):
            await run.read_on()
        harness.clock.advance(0.4)  # the clock stands still: more would be a stall, which is waited out
        await within(runner.wait_until(lambda: runner.table.open_windows == 0))
        assert runner.table.last_forgetting is not None
        harness.clock.advance(1)
        await within(runner.wait_until(lambda: runner.table.last_forgetting is None))


class QuietHook:
    """Leaves a reference as ArrayKeeper does."""

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        del sampling
        episode.traces[0].info["training_arrays"] = [{"key": episode.id, "shape": [TOKENS, 4, 2]}]

    def discard(self, episode: Episode) -> None:
        raise AssertionError(f"episode {episode.id} was delivered")


class QuietHarness(Harness):
    """Records nothing, so that what is measured is the worker's."""

    def __init__(self) -> None:
        self.clock, self.asked = FakeClock(), 0
        self.runner = Runner(WorkerSettings(), instance="0" * 32, hook=QuietHook(), clock=self.clock)

    async def deliver(self, count: int) -> None:
        """Run so many to their replies, some at a time."""
        left = iter(range(count))

        async def some() -> None:
            for _ in left:
                self.history = History()
                assert await self.ask(small).read_on() == "OK"

        await asyncio.gather(*(some() for _ in range(32)))
        await within(self.runner.wait_until(lambda: self.runner.slots.held == 0))

    def pass_by(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.runner.expire()


async def environments_idle(harness: Harness) -> None:
    """The environments' thread has left the step in which a run told its end, and holds nothing of it."""

    async def nothing() -> None: ...

    await within(asyncio.wrap_future(harness.runner.environments.submit(nothing())))


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.timeout(300)  # every allocation of all runs is traced
async def test_what_thousands_of_delivered_runs_cost_in_their_window_and_after_it() -> None:
    harness = QuietHarness()
    table = harness.runner.table
    window = table.late_cancel_seconds
    tracemalloc.start()
    try:
        # What is made once, and what the interpreter keeps at hand, is not counted: a quarter of a megabyte,
        # which would take many more runs to be little for each.
        await harness.deliver(FIRST_RUNS)
        harness.pass_by(window)
        harness.pass_by(2 * window)
        before = traced()
        await harness.deliver(RUNS)
        assert table.open_windows == RUNS
        in_their_window = (traced() - before) / RUNS
        harness.pass_by(window)
        assert (len(table), table.open_windows) == (0, 0)
        tombstones = (traced() - before) / RUNS
        harness.pass_by(2 * window)
        assert table.last_forgetting is None
        left = (traced() - before) / RUNS
    finally:
        tracemalloc.stop()
        await within(harness.runner.close())
    assert in_their_window < 20_000, f"{in_their_window:.0f} bytes a run"
    assert tombstones < 200, f"{tombstones:.0f} bytes a tombstone"
    assert left < 40, f"{left:.0f} bytes a run are left, which is more than what an interpreter caches"


async def its_reply(caller: Caller) -> None:
    """Write what comes until the reply is under way."""
    assert caller.run is not None
    while (data := await caller.take()) is not None:
        if caller.run.entry.state in (State.KEPT, State.UNKEPT):
            return
        caller.write(data)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("hooked", [True, False])
@pytest.mark.usefixtures("no_collector")
async def test_a_run_that_is_over_leaves_only_its_tombstone_and_no_cycle(hooked: bool) -> None:
    async with running(hooked=hooked) as harness:
        confirmed, cancelled, aborted, unwritten = callers = [harness.ask(with_arrays) for _ in range(4)]
        gone: list[weakref.ref[Any]] = []
        for caller in callers:
            assert caller.run is not None
            gone.append(weakref.ref(caller.run))
            if not hooked:  # a hook's thread may hold the episode for a moment more
                gone.append(weakref.ref(caller.run.episode))
        assert harness.cancel(aborted.id) == "ABORTED"
        await its_reply(unwritten)
        assert harness.cancel(unwritten.id) == "ABORTED"
        for caller in callers:
            ended_well = caller in (confirmed, cancelled)
            assert await caller.read_on() == ("OK" if ended_well else "CANCEL_REQUESTED")
            caller.run, caller.port = None, RunPort()  # as when the handler has ended
        await within(harness.runner.wait_until(lambda: harness.runner.slots.held == 0))
        assert harness.confirm(confirmed.id) == "CONFIRMED"
        assert harness.cancel(cancelled.id) == "DISCARDED"
        await harness.at_rest()
        await environments_idle(harness)
        assert [reference() for reference in gone] == [None] * len(gone)
        assert harness.cancel(confirmed.id) == "TOO_LATE"

"""Environments and hooks that do what nobody should: their own run ends, and every other one goes on."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import delta_pb2

from env_worker.domain import Call, Message
from tests.helpers.history import DiscardBegan, KeepBegan, Passed
from tests.helpers.runner_harness import Stop, one_turn, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from env_worker.domain import Episode, SamplingParams
    from env_worker.envs.base import Context
    from tests.helpers.runner_harness import Caller, Harness


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def replied(harness: Harness, caller: Caller) -> bool:
    passed = harness.history.of(caller.id, Passed)
    return any(delta_pb2.DeltaStream.FromString(record.data).HasField("reply") for record in passed)


# Environments.


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), UnprintableError()])
async def test_a_validate_that_raises_whatever_it_likes_ends_its_own_run(error: BaseException) -> None:
    def validate(_: Mapping[str, Any]) -> None:
        raise error

    async with running() as harness:
        caller, other = harness.ask(one_turn, validate=validate), harness.ask(one_turn)
        assert await caller.read_on() == "ENVIRONMENT_FAILED"
        assert await other.read_on() == "OK"


async def test_a_validate_that_blocks_holds_up_no_cancel() -> None:
    stop = Stop()
    async with running() as harness:
        caller = harness.ask(one_turn, validate=lambda _: stop.block())
        await stop.reached()
        assert harness.cancel(caller.id) == "ABORTED"
        assert await caller.read_on() == "CANCEL_REQUESTED", "while it still blocks"
        stop.go()


@pytest.mark.parametrize(
    "write",
    [
        lambda trace: trace.add_call(Call(node=0, started_at=1_700_000_000_000.0)),
        lambda trace: trace.add_node(Message.user("x"), created_at=1e18),
        lambda trace: trace.set_reward("r", 1e308, 10.0),
        lambda trace: trace.set_tools("[NaN]"),
    ],
)
async def test_what_the_wire_cannot_hold_is_the_environments_error(write: Callable[[Any], object]) -> None:
    async def play(context: Context) -> None:
        await one_turn(context)
        write(context.episode.traces[0])

    async with running() as harness:
        caller = harness.ask(play)
        assert await caller.read_on() == "OK"
        assert [record.ok for record in harness.history.of(caller.id, KeepBegan)] == [False]


async def test_info_that_is_nested_as_deep_as_it_can_be_ends_alike_in_reply_and_status() -> None:
    def nested(depth: int) -> Any:
        return functools.reduce(lambda inner, _: [inner], range(depth), 1)

    async def play(context: Context) -> None:
        await one_turn(context)
        info = context.episode.traces[0].info
        for depth in range(900, 1_000, 10):
            info["deep"] = nested(depth)  # the last of them that can be written stays

    async with running() as harness:
        caller = harness.ask(play)
        assert (await caller.read_on() == "OK") is replied(harness, caller)
        harness.cancel(caller.id)
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


# Hooks.


def raises(_: Episode) -> None:
    raise UnprintableError


def breaks_the_episode(episode: Episode) -> None:
    episode.drop_arrays = raises  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(("keep", "reason"), [(raises, "HOOK_FAILED"), (breaks_the_episode, "INTERNAL")])
async def test_after_a_keep_that_cannot_be_followed_by_anything_the_ledger_is_closed(
    keep: Callable[[Episode], None], reason: str
) -> None:
    async with running() as harness:
        caller, other = harness.ask(one_turn), harness.ask(one_turn)
        harness.hook.in_keep[caller.id] = keep
        assert await caller.read_on() == reason
        assert await other.read_on() == "OK"
        await harness.at_rest()
        assert harness.runner.at_work() == [], "nothing that a stop would wait for"
        assert harness.runner.table.get(caller.id) is None
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


@pytest.fixture
def straggling() -> Iterator[Callable[[Episode], None]]:
    """A keep that leaves a thread behind, which goes on writing infos until the test ends."""
    over, threads = threading.Event(), list[threading.Thread]()

    def keep(episode: Episode) -> None:
        info = episode.traces[0].info

        def write() -> None:
            number = 0
            while not over.wait(0.0005):
                number += 1
                info[f"progress {number % 100}"] = number

        threads.append(threading.Thread(target=write))
        threads[0].start()

    yield keep
    over.set()
    for thread in threads:
        thread.join(5)


async def test_a_hooks_thread_that_goes_on_writing_holds_up_no_reply_and_breaks_no_discard(
    straggling: Callable[[Episode], None],
) -> None:
    async with running() as harness:
        caller = harness.ask(one_turn)
        harness.hook.in_keep[caller.id] = straggling
        assert await caller.read_on() == "OK"
        assert replied(harness, caller)
        assert harness.cancel(caller.id) == "DISCARDED"
        await harness.at_rest()
        assert len(harness.history.of(caller.id, DiscardBegan)) == 1


async def test_a_keep_that_is_async_behind_a_decorator_is_not_taken_for_kept() -> None:
    async def asynchronous() -> None: ...

    async with running() as harness:
        caller = harness.ask(one_turn)
        plain = harness.hook.keep

        def decorated(episode: Episode, sampling: SamplingParams) -> Any:
            plain(episode, sampling)
            return asynchronous()

        harness.hook.keep = decorated  # type: ignore[method-assign]
        assert await caller.read_on() == "HOOK_FAILED"
        assert caller.port.ending is not None
        assert "make it a plain function" in caller.port.ending.message

"""Hooks with an array store: whose reservation it is where they are replaced, and whose worker they are."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.config import WorkerSettings
from env_worker.domain import SamplingParams
from env_worker.hook import array_store, set_episode_hook
from env_worker.model.simulated import SimulatedModel
from env_worker.port import RunPort
from env_worker.run import RunSpec
from env_worker.runner import Runner
from env_worker.status import Refusal
from tests.helpers.counting_store import CountingStore
from tests.helpers.runner_harness import FunctionEnvironment, Stop, say, within
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from env_worker.domain import Episode
    from env_worker.envs.base import Context
    from env_worker.hook import EpisodeHook


class StoringHook:
    """Keeps nothing, in a store of its own."""

    def __init__(self) -> None:
        self.array_store = CountingStore()
        self.kept = 0

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        self.kept += 1

    def discard(self, episode: Episode) -> None: ...


class Scenario:
    """A runner of the hook that is set, one run of which halts before it finishes."""

    def __init__(self, adopt: Callable[[EpisodeHook], None] = lambda _: None) -> None:
        self.runner = Runner(WorkerSettings(), instance="0" * 32, adopt=adopt)
        self.stop = Stop()
        self.port: RunPort[Refusal] = RunPort()

    def start(self) -> None:
        async def play(context: Context) -> None:
            say(context, "first")
            await self.stop.halt()

        self.runner.start(
            RunSpec(
                request_id=new_id(), environment_name="function", environment=FunctionEnvironment(play),
                task={}, task_json="{}", sampling=SamplingParams(), model=SimulatedModel(),
            ),
            self.port,
        )  # fmt: skip

    async def finish(self) -> str:
        """Let the run finish; how it ended."""
        self.stop.go()
        async with asyncio.timeout(5):
            while await self.port.take() is not None:
                self.port.written()
            await self.runner.wait_replied()
            await self.runner.wait_hooks()
        return "OK" if self.port.ending is None else self.port.ending.reason_name


@contextmanager
def hook_set(hook: EpisodeHook) -> Iterator[None]:
    set_episode_hook(hook)
    try:
        yield
    finally:
        set_episode_hook(None)


@pytest.mark.parametrize("replaced_by_none", [False, True])
async def test_room_is_given_back_to_the_store_that_it_was_reserved_in(replaced_by_none: bool) -> None:
    before, after = StoringHook(), StoringHook()
    with hook_set(before):
        scenario = Scenario()
        try:
            scenario.start()
            before.array_store.check(open_reservations=1)
            set_episode_hook(None if replaced_by_none else after)
            assert await scenario.finish() == "OK"
            assert (before.kept, after.kept) == (0, 0 if replaced_by_none else 1)
            before.array_store.check()
            assert after.array_store.reservations == []
        finally:
            await scenario.runner.close()


async def test_a_runner_that_closes_gives_back_what_its_runs_had_reserved() -> None:
    hook = StoringHook()
    with hook_set(hook):
        scenario = Scenario()
        try:
            scenario.start()
            await within(scenario.stop.reached())
        finally:
            await scenario.runner.close()
        hook.array_store.check()


def only(mine: EpisodeHook) -> Callable[[EpisodeHook], None]:
    def adopt(hook: EpisodeHook) -> None:
        if hook is not mine:
            raise ValueError("these training arrays belong to worker 01234567")

    return adopt


async def test_a_store_of_another_worker_refuses_the_run_before_it_begins() -> None:
    hook = StoringHook()
    with hook_set(hook):
        scenario = Scenario(adopt=only(StoringHook()))
        try:
            with pytest.raises(Refusal, match="belong to worker 01234567") as refused:
                scenario.start()
            assert refused.value.reason_name == "HOOK_FAILED"
            assert (len(scenario.runner.table), hook.array_store.reservations) == (0, [])
        finally:
            await scenario.runner.close()


async def test_a_hook_of_another_worker_that_was_set_meanwhile_fails_the_run_without_a_keep() -> None:
    before, after = StoringHook(), StoringHook()
    with hook_set(before):
        scenario = Scenario(adopt=only(before))
        try:
            scenario.start()
            set_episode_hook(after)
            assert await scenario.finish() == "HOOK_FAILED"
            assert scenario.port.ending is not None
            assert "belong to worker 01234567" in scenario.port.ending.message
            assert (before.kept, after.kept) == (0, 0)
            before.array_store.check()
        finally:
            await scenario.runner.close()


class LeavingHook(StoringHook):
    """Its attribute raises what would end an event loop."""

    leaves = False

    def __getattribute__(self, name: str) -> Any:
        if name == "array_store" and type(self).leaves:
            raise SystemExit("out of here")
        return super().__getattribute__(name)


def reading(hook: EpisodeHook) -> None:
    """Adopt a hook as a worker does, as far as that reads its attribute."""
    array_store(hook)


@pytest.mark.parametrize("raised_at", ["admission", "keep"])
async def test_a_hook_whose_attribute_wants_to_leave_fails_its_run_alone(raised_at: str) -> None:
    before, after = StoringHook(), LeavingHook()
    with hook_set(before if raised_at == "keep" else after):
        scenario = Scenario(adopt=reading)
        LeavingHook.leaves = True
        try:
            if raised_at == "admission":
                with pytest.raises(Refusal, match="SystemExit: out of here") as refused:
                    scenario.start()
                assert refused.value.reason_name == "HOOK_FAILED"
                assert len(scenario.runner.table) == 0
            else:
                scenario.start()
                set_episode_hook(after)
                assert await scenario.finish() == "HOOK_FAILED"
                assert (before.kept, after.kept) == (0, 0)
                before.array_store.check()
        finally:
            LeavingHook.leaves = False
            await scenario.runner.close()

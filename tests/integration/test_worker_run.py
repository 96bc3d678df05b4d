"""A worker's server in the test's own process, called through the generated stub."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import delta_pb2, env_service_pb2, env_service_pb2_grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from env_worker.config import SettingsError, WorkerSettings
from env_worker.listening import ServerStartError
from env_worker.server import WorkerServer
from tests.helpers import oracle
from tests.helpers.clock import FakeClock
from tests.helpers.history import DiscardBegan, History, KeepBegan
from tests.helpers.runner_harness import HaltingHook, Stop, within
from tests.helpers.stub_client import OPTIONS, StubClient, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SMALL = {"turns": 2, "tokens_per_turn": 20, "layers": 2, "top_k": 2}


class Subject:
    def __init__(self, server: WorkerServer, client: StubClient, hook: HaltingHook, clock: FakeClock) -> None:
        self.server = server
        self.client = client
        self.hook = hook
        self.clock = clock


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Subject]:
    history, clock = History(), FakeClock()
    hook = HaltingHook(history)
    server = WorkerServer(WorkerSettings(environments=("synthetic",), **settings), hook=hook, clock=clock)
    await server.start()
    async with StubClient(server.address, history) as client:
        try:
            yield Subject(server, client, hook, clock)
            await within(server.runner.wait_hooks())
            oracle.promises_hold(client.history, asked=client.asked)
        finally:
            assert await asyncio.wait_for(server.stop(hurry=True), 20) == []


async def test_an_episode_from_request_to_reply() -> None:
    async with serving() as subject:
        outcome = await subject.client.run(SMALL, group_id="g")
        assert outcome.code == "OK"
        head = outcome.episode.head
        assert (head.environment, head.group_id, head.ok) == ("synthetic", "g", True)
        assert head.worker_instance == subject.server.instance
        assert head.episode_id not in ("", outcome.run)
        assert len(outcome.episode.traces[0].nodes) == 4
        assert len(subject.client.history.of(outcome.run, KeepBegan)) == 1


async def test_initial_metadata_means_admitted() -> None:
    async with serving(max_concurrent=1) as subject:
        stub = subject.client.stub
        holder = new_id()

        def ask(run: str) -> Any:
            request = env_service_pb2.RunRequest(
                request_id=run, protocol_generation=1, task_json='{"turns":1,"turn_seconds":600}'
            )
            return stub.Run(request, timeout=30)

        first = ask(holder)
        await asyncio.wait_for(first.initial_metadata(), 5)
        second = ask(new_id())
        waiting = asyncio.create_task(second.initial_metadata())
        runner = subject.server.runner
        await within(runner.wait_until(lambda: runner.slots.waiting == 1))
        assert not waiting.done()
        assert await subject.client.cancel(holder) == "ABORTED"
        await asyncio.wait_for(waiting, 5)
        first.cancel()
        second.cancel()


async def test_a_caller_that_hangs_up_leaves_nothing() -> None:
    async with serving() as subject:
        stop = Stop()
        run = subject.client.start(SMALL)
        subject.hook.in_keep[run.run] = lambda _: stop.block()
        await stop.reached()
        assert (await run.drop()).code == "CANCELLED"
        runner = subject.server.runner
        entry = runner.table.get(run.run)
        assert entry is not None
        await within(runner.wait_until(lambda: entry.settled))
        stop.go()
        await within(subject.server.runner.wait_hooks())
        assert len(subject.client.history.of(run.run, DiscardBegan)) == 1
        assert await subject.client.cancel(run.run) == "ABORTED"


async def test_a_deadline_ends_the_run_on_both_sides() -> None:
    async with serving() as subject:
        outcome = await subject.client.run({"turns": 1, "turn_seconds": 600}, timeout=0.2)
        assert outcome.code == "DEADLINE_EXCEEDED"
        runner = subject.server.runner
        await within(runner.wait_until(lambda: not runner.table.entries()))


async def test_a_reader_that_does_not_read_stalls_its_own_run_only() -> None:
    async with serving() as subject:
        large = {"turns": 150, "tokens_per_turn": 20_000}
        clogged = subject.client.start(large)
        await clogged.next()
        assert (await subject.client.run(SMALL)).code == "OK"
        entry = subject.server.runner.table.get(clogged.run)
        assert entry is not None
        assert not entry.replied, "its sends are held up"
        outcome = await clogged.finish()
        assert outcome.code == "OK"
        assert max(message.ByteSize() for message in outcome.messages) < 2 * 2**20
        assert sum(len(trace.nodes) for trace in outcome.episode.traces) == 300


async def test_after_the_window_it_is_too_late() -> None:
    async with serving(late_cancel_seconds=60) as subject:
        outcome = await subject.client.run(SMALL)
        subject.clock.advance(60)
        subject.server.runner.expire()
        assert await subject.client.cancel(outcome.run) == "TOO_LATE"


async def test_a_stay_for_windows_is_as_long_as_they_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(late_cancel_seconds=10) as subject:
        assert (await subject.client.run(SMALL)).code == "OK"
        stopping = asyncio.create_task(subject.server.stop())
        async with asyncio.timeout(20):
            while "stays about 10 s, at most 60 s, for 1 replies" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0)
        subject.clock.advance(10)
        subject.server.runner.expire()
        await asyncio.wait_for(stopping, 20)
    assert "stops: no run is under way" in caplog.text
    assert "stopped, nothing was lost" in caplog.text


async def test_an_address_to_be_advertised_to_nobody_is_questioned(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(advertise="worker:1"):
        pass
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("--advertise is worker:1, but no --broker")


async def test_health_says_whether_a_run_would_be_taken() -> None:
    async with serving(max_concurrent=1, max_queue=0) as subject:
        watch = subject.client.health.Watch(
            health_pb2.HealthCheckRequest(service="envtrio.v1.EnvService"), timeout=20
        )
        states: list[int] = [(await watch.read()).status]
        stop = Stop()
        run = subject.client.start(SMALL)
        subject.hook.in_keep[run.run] = lambda _: stop.block()
        states.append((await watch.read()).status)
        refused = await subject.client.run(SMALL)
        assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
        assert refused.retry_seconds == 1.0
        stop.go()
        assert (await run.finish()).code == "OK"
        states.append((await watch.read()).status)
        watch.cancel()
        serving_, not_serving = (
            health_pb2.HealthCheckResponse.SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        assert states == [serving_, not_serving, serving_]


async def test_loopback_has_reflection() -> None:
    async with (
        serving() as subject,
        grpc.aio.insecure_channel(subject.server.address, options=OPTIONS) as channel,
    ):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        call = stub.ServerReflectionInfo(timeout=20)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert {"envtrio.v1.EnvService", "grpc.health.v1.Health"} <= names
        call.cancel()


async def test_the_handlers_are_those_of_the_generated_service() -> None:
    async with serving() as subject:
        service = env_service_pb2.DESCRIPTOR.services_by_name["EnvService"]
        assert {method.name for method in service.methods} == {
            name for name in vars(env_service_pb2_grpc.EnvServiceServicer) if not name.startswith("_")
        }
        # An unknown method is told apart from one that is there and refuses.
        async with grpc.aio.insecure_channel(subject.server.address, options=OPTIONS) as channel:
            for method in service.methods:
                call: Any = channel.unary_unary(f"/{service.full_name}/{method.name}")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(b"", timeout=20)
                assert "Method not found" not in (error.value.details() or "")


async def test_a_port_in_use_and_an_open_address_are_refused() -> None:
    async with serving() as subject:
        taken = WorkerServer(WorkerSettings(environments=("synthetic",), listen=subject.server.address))
        with pytest.raises(ServerStartError, match="in use"):
            await taken.start()
        with pytest.raises(RuntimeError, match="await start"):
            _ = taken.runner
    exposed = WorkerServer(WorkerSettings(environments=("synthetic",), listen="0.0.0.0:0"))
    with pytest.raises(SettingsError, match="neither encrypted nor authenticated"):
        await exposed.start()


async def test_many_runs_at_once() -> None:
    async with serving(max_concurrent=8, max_queue=100) as subject:
        outcomes = await asyncio.gather(*(subject.client.run(SMALL) for _ in range(60)))
        assert {outcome.code for outcome in outcomes} == {"OK"}
        assert subject.server.runner.counters["replied"] == 60
        assert all(isinstance(outcome.messages[-1], delta_pb2.DeltaStream) for outcome in outcomes)

"""A lease says that a worker reaches the broker; a dial finds out whether the broker reaches the worker."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2
from grpc_health.v1 import health_pb2

from env_broker import dial_back
from env_broker import link as link_module
from env_broker.dial_back import FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS, DialBack, describe
from env_broker.link import WorkerLink
from env_broker.pool import Worker
from tests.helpers.clock import FakeClock
from tests.helpers.history import History
from tests.helpers.raw_client import connected, message, until_queued
from tests.helpers.scripted_worker import Abort, Admit, Hang, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import OPTIONS, StubClient, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_broker.server import BrokerServer

SECONDS = 10.0


class StubLink:
    """A link whose connection the test breaks."""

    def __init__(self) -> None:
        self.worker = Worker("i" * 32, "lease", "host:1", frozenset({"e"}), 1, 60.0, 0.0)
        self.name, self.address, self.lost = "worker", "host:1", False
        self.legs: set[Any] = set()
        self.broken = asyncio.Event()

    async def disconnected(self) -> None:
        await self.broken.wait()
        self.broken.clear()

    def lose(self) -> None:
        self.lost = True
        for leg in self.legs:
            leg.worker_lost()


class Scene:
    """A watched link. Each dial waits for the test, which says what it finds."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.link: Any = StubLink()
        self.worker = self.link.worker
        self.changes = self.reached = 0
        self._dials: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()
        self.dial_back = DialBack(
            clock=self.clock, on_change=self._changed, on_reached=self._reached, dial=self._dial
        )
        self.dial_back.watch(self.link)

    async def dialled(self, cause: str) -> None:
        """Wait for a dial, and let it find that."""
        (await asyncio.wait_for(self._dials.get(), SECONDS)).set_result(cause)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def dialling(self) -> bool:
        return not self._dials.empty()

    async def _dial(self, link: WorkerLink) -> str:
        assert link is self.link
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._dials.put_nowait(found)
        return await found

    def _changed(self) -> None:
        self.changes += 1

    def _reached(self, link: WorkerLink) -> None:
        assert link is self.link
        assert not self.worker.reachable
        self.reached += 1


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    scene.link.lose()


async def test_a_worker_gets_runs_once_it_was_reached(scene: Scene) -> None:
    assert not scene.worker.takes("e")
    await scene.dialled("")
    assert scene.worker.takes("e")
    assert (scene.worker.unreachable_because, scene.changes) == ("", 1)


async def test_it_is_dialled_again_and_again_and_each_cause_is_logged_once(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    assert scene.reached == 0
    causes, delay = ["refused", "refused", "silent", "refused", "refused", "refused"], FIRST_DELAY_SECONDS
    for number, cause in enumerate(causes):
        await scene.dialled(cause)
        # A first failure may be a moment's: what waits for the worker, waits on.
        assert scene.worker.unreachable_because == (cause if number else "")
        assert not scene.worker.reachable
        await scene.clock.sleepers(1)
        scene.clock.advance(delay * 0.99)
        await asyncio.sleep(0)
        assert not scene.dialling
        scene.clock.advance(delay * 0.01 + 1e-6)
        delay = min(2 * delay, LAST_DELAY_SECONDS)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    for word in ("host:1", "refused"):
        assert word in warned[0].getMessage()
    assert scene.changes == 3  # what waits is looked at again when the cause is another, not at each try
    with caplog.at_level(logging.INFO):
        await scene.dialled("")
    assert "can be reached" in caplog.text
    assert scene.worker.reachable
    assert scene.reached == 1


async def test_a_connection_that_breaks_is_dialled_again(scene: Scene) -> None:
    await scene.dialled("")
    scene.link.broken.set()
    await scene.clock.sleepers(1)  # not at once: one that breaks again and again makes no busy loop
    assert (scene.worker.reachable, scene.worker.unreachable_because, scene.dialling) == (False, "", False)
    scene.clock.advance(FIRST_DELAY_SECONDS)
    await scene.dialled("")
    assert scene.worker.reachable


async def test_a_doubt_takes_it_out_at_once_and_dials_at_once(scene: Scene) -> None:
    await scene.dialled("")
    changes = scene.changes
    scene.dial_back.doubt(scene.link)
    assert not scene.worker.reachable
    assert scene.changes == changes + 1
    await scene.dialled("")
    assert scene.worker.reachable
    scene.link.lost = True
    scene.dial_back.doubt(scene.link)
    assert scene.worker.reachable, "its lease is over, which is not for this table to say"


async def test_a_registration_is_verified_and_what_it_was_holds_until_then(scene: Scene) -> None:
    await scene.dialled("")
    scene.dial_back.verify(scene.link)
    await asyncio.sleep(0)
    assert scene.worker.reachable
    await scene.dialled("silent")
    assert not scene.worker.reachable
    assert scene.changes == 2
    scene.dial_back.verify(scene.link)  # does not wait for the next try
    await scene.dialled("")
    assert scene.worker.reachable


async def test_a_lost_worker_is_dialled_no_more(scene: Scene) -> None:
    [watch] = scene.link.legs
    scene.link.lose()
    await asyncio.wait({watch._task})
    assert watch._task.cancelled()


async def test_a_dial_that_raises_is_a_failed_one(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        (await asyncio.wait_for(scene._dials.get(), SECONDS)).set_exception(AttributeError("no such thing"))
        await scene.clock.sleepers(1)
        assert not scene.worker.reachable
        scene.clock.advance(LAST_DELAY_SECONDS)
    assert scene.worker.unreachable_because == "dialling it failed: AttributeError: no such thing"
    assert "a fault of the broker itself" in caplog.text
    await scene.dialled("")
    assert scene.worker.reachable


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[WorkerLink]:
    """A link to what gives that answer to Describe."""

    async def described(data: bytes, context: object) -> bytes:
        return answer

    server = grpc.aio.server(options=OPTIONS)
    handlers = {"Describe": grpc.unary_unary_rpc_method_handler(described)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("envtrio.v1.EnvService", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = WorkerLink(Worker("i" * 32, "lease", f"127.0.0.1:{port}", frozenset(), 1, 60.0, 0.0))
    try:
        yield link
    finally:
        await link.close()
        await server.stop(0)


async def test_what_answers_with_other_bytes_is_no_worker() -> None:
    async with answering(b"\xff\xff\xff") as link:
        cause = await asyncio.wait_for(describe(link), SECONDS)
    assert cause.startswith("what answers there is no env-worker")


async def test_a_connection_without_runs_is_never_closed_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC does so after half an hour, which looks like a break: shown with its least, a second."""
    name, never = "grpc.client_idle_timeout_ms", 2**31 - 1
    assert dict(link_module.CHANNEL_OPTIONS)[name] == never
    others = tuple(option for option in link_module.CHANNEL_OPTIONS if option[0] != name)
    monkeypatch.setattr(link_module, "CHANNEL_OPTIONS", (*others, (name, 1_000)))
    answer = env_service_pb2.DescribeResponse(instance="i" * 32).SerializeToString()
    async with answering(answer) as link:
        assert await describe(link) == ""
        await asyncio.wait_for(link.disconnected(), SECONDS)


@pytest.mark.parametrize("how", ["reached", "another", "refused", "silent"])
async def test_what_a_dial_finds(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "DIAL_SECONDS", 0.2 if how == "silent" else SECONDS)
    async with ScriptedWorker() as worker:
        if how == "another":
            worker.registered_as = "b" * 32
        if how == "refused":
            await worker.crash()
        if how == "silent":
            worker.mute = asyncio.Event()
        link = WorkerLink(Worker(worker.instance, "lease", worker.address, frozenset(), 1, 60.0, 0.0))
        try:
            cause = await asyncio.wait_for(describe(link), SECONDS)
        finally:
            await link.close()
    expected = {
        "reached": "",
        "another": "another process answers there, worker bbbbbbbb; correct its --advertise",
        "refused": "UNAVAILABLE: ",
        "silent": "nobody answered in 0.2 s; start it with an --advertise",
    }[how]
    assert cause.startswith(expected)
    assert bool(cause) == (how != "reached")
    assert ("--advertise" in cause) == (how != "reached")


async def serving(broker: BrokerServer) -> bool:
    """What health says."""
    async with StubClient(broker.address, History()) as client:
        answer = await client.health.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_an_address_that_cannot_be_dialled_gets_no_run_and_says_why() -> None:
    async with connected() as (broker, client), ScriptedWorker("e", address="127.0.0.1:1") as worker:
        lease = await worker.register(broker.address)
        call = client.start(new_id(), environment="e")
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "NO_WORKER_READY")
        for word in (worker.instance[:8], "127.0.0.1:1", "UNAVAILABLE", "--advertise"):
            assert word in await call.details()
        await lease.beat()  # its lease lives all the same
        assert not await serving(broker)
        assert broker._links[worker.instance].unreachable_because.startswith("UNAVAILABLE")


async def test_another_process_at_the_address_is_not_the_worker() -> None:
    async with connected() as (broker, client), ScriptedWorker("e") as worker, ScriptedWorker("e") as other:
        await other.register(broker.address, address=worker.address)
        call = client.start(new_id(), environment="e")
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "NO_WORKER_READY")
        assert f"another process answers there, worker {worker.instance[:8]}" in await call.details()


async def test_a_newcomer_with_the_address_of_a_living_worker_displaces_nobody() -> None:
    """Each displaced the other, 15 times a second, and runs were lost each time."""
    run, go = new_id(), asyncio.Event()
    async with connected() as (broker, client), ScriptedWorker("e") as good, ScriptedWorker("e") as copied:
        lease = await good.register(broker.address)
        good.script(run, Admit(), Wait(go), Send(message("a")))
        call = asyncio.create_task(client.run(run, environment="e"))
        await good.until(lambda: run in good.runs)
        described = good.described
        wrong = await copied.register(broker.address, address=good.address)
        await good.until(lambda: good.described >= described + 3)  # it is dialled again and again
        standing = broker._links[copied.instance]
        assert not standing.reachable
        assert f"another process answers there, worker {good.instance[:8]}" in standing.unreachable_because
        assert {worker.instance for worker in broker.pool.workers()} == {good.instance, copied.instance}
        assert broker.observer.counters.view()["workers_lost"] == 0
        await lease.beat()
        await wrong.beat()
        go.set()
        assert (await call)[1] == "OK"


async def test_the_first_runs_wait_for_the_dial() -> None:
    run, go = new_id(), asyncio.Event()

    async def dial(link: WorkerLink) -> str:
        await go.wait()
        return await describe(link)

    async with connected(dial=dial) as (broker, client), ScriptedWorker("e", address="?") as worker:
        worker.script(run, Send(message("a")))
        await worker.register(broker.address, address=f"localhost:{worker.port}")
        call = asyncio.create_task(client.run(run, environment="e"))
        await until_queued(broker, 1)
        assert not await serving(broker)
        go.set()
        assert (await call)[1] == "OK"
        assert await serving(broker)


async def test_a_worker_whose_connection_breaks_while_its_lease_lives_gets_no_runs() -> None:
    run = new_id()
    async with connected() as (broker, client), ScriptedWorker("e") as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Send(message("a")), Hang())
        call = client.start(run, environment="e")
        assert await call.read() == message("a")
        await worker.crash()
        assert (await client.read_all(call))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        late = client.start(new_id(), environment="e")
        assert (await client.read_all(late))[1:] == ("UNAVAILABLE", "NO_WORKER_READY")
        assert worker.address in await late.details()
        await lease.beat()
        assert len(broker.pool) == 1
        assert not await serving(broker)


async def test_a_status_that_grpc_made_is_a_doubt_and_a_reached_worker_goes_on() -> None:
    broken, fine = new_id(), new_id()
    async with connected() as (broker, client), ScriptedWorker("e") as worker:
        await worker.register(broker.address)
        described = worker.described
        worker.script(broken, Abort(grpc.StatusCode.UNAVAILABLE))
        assert (await client.run(broken, environment="e"))[1:] == ("UNAVAILABLE", "WORKER_LOST")
        worker.script(fine, Send(message("a")))
        assert (await client.run(fine, environment="e"))[1] == "OK"
        assert worker.described == described + 1

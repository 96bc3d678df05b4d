"""A client that does not read holds neither a handler nor a slot for long once its run has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from env_broker.client_hop import ContextHop, HopBrokenError
from env_broker.run_leg import UNREAD_SECONDS
from env_worker import servicer as worker_servicer
from env_worker import unread
from tests.helpers.clock import FakeClock
from tests.helpers.raw_client import connected
from tests.helpers.scripted_worker import Hang, ScriptedWorker, Send
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import SMALL, serving_worker

LARGE = 48 * 2**20
"""Bytes that no connection takes while nobody reads."""
SECONDS = 10.0


class Writing:
    """A handler's context that says when the write of a large message has begun, and when it is over."""

    def __init__(self, context: Any, begun: asyncio.Event, over: asyncio.Event) -> None:
        self._context = context
        self._begun = begun
        self._over = over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, data: bytes) -> None:
        large = len(data) > 2**20
        if large:
            self._begun.set()
        try:
            await self._context.write(data)
        finally:
            if large:
                self._over.set()


async def test_a_worker_frees_what_a_cancelled_client_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "UNREAD_SECONDS", 0.0)
    begun, over = asyncio.Event(), asyncio.Event()
    serve = worker_servicer.EnvServicer.Run

    async def noted(self: worker_servicer.EnvServicer, data: bytes, context: Any) -> None:
        await serve(self, data, Writing(context, begun, over))  # type: ignore[arg-type]

    monkeypatch.setattr(worker_servicer.EnvServicer, "Run", noted)
    async with serving_worker(max_concurrent=1) as subject:
        run = subject.client.start({"mebibytes": 48}, environment="large")
        await asyncio.wait_for(begun.wait(), SECONDS)
        assert not over.is_set()
        assert await subject.client.cancel(run.run) == "ABORTED"
        await asyncio.wait_for(over.wait(), SECONDS)
        assert (await subject.client.run(SMALL)).code == "OK", "the only slot is free"
        ended = await run.finish()
        assert (ended.code, ended.reason) == ("CANCELLED", "CANCEL_REQUESTED"), "it reads after all"


@pytest.mark.parametrize(
    ("how", "reason"),
    [("cancelled", ("CANCELLED", "CANCEL_REQUESTED")), ("worker lost", ("UNAVAILABLE", "WORKER_LOST"))],
)
async def test_a_broker_frees_what_a_client_does_not_read(
    how: str, reason: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other, clock, begun = new_id(), new_id(), FakeClock(), asyncio.Event()
    send = ContextHop.send

    async def noted(self: ContextHop, message: bytes) -> None:
        if len(message) == LARGE:
            begun.set()
        await send(self, message)

    monkeypatch.setattr(ContextHop, "send", noted)
    async with connected(clock) as (broker, client), ScriptedWorker(slots=1) as worker:
        lease = await worker.register(broker.address)
        worker.script(run, Send(bytes(LARGE)), Hang())
        call = client.start(run)
        await asyncio.wait_for(begun.wait(), SECONDS)
        [leg] = broker.relay._legs.values()
        if how == "cancelled":
            assert await client.cancel(run) == "ABORTED"
        else:
            await lease.close()
        async with asyncio.timeout(SECONDS):
            while leg._waiting is None:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)
        await clock.sleepers(3 if how == "cancelled" else 2)  # the housekeeping, this, and the lease's end
        clock.advance(UNREAD_SECONDS - 0.1)
        await client.cancel(new_id())  # a round trip
        assert run in broker.relay._legs, "it may read yet"
        clock.advance(0.1)
        await asyncio.wait_for(broker.relay.idle(), SECONDS)
        assert (await client.read_all(call))[1:] == reason, "it reads after all"
        await worker.register(broker.address)
        worker.script(other, Send(b""))
        assert (await client.run(other))[1] == "OK", "the only slot is free"


@pytest.mark.parametrize("step", ["admitted", "send"])
async def test_whatever_the_transport_raises_is_a_broken_hop(step: str) -> None:
    class Broken:
        async def write(self, _: bytes) -> None:
            raise grpc.aio.UsageError("the stream is over")

        async def send_initial_metadata(self, _: object) -> None:
            raise RuntimeError("the stream is over")

    context: Any = Broken()
    hop = ContextHop(context)
    with pytest.raises(HopBrokenError, match="the stream is over"):
        await (hop.admitted() if step == "admitted" else hop.send(b""))

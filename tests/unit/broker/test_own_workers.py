"""Whom a broker takes for a worker of its own, and what it makes of the word of one that drains."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from envtrio.v1 import registry_service_pb2

from env_broker.given_up import GivenUp
from env_broker.hello import check_hello
from env_broker.status import Refusal
from tests.helpers.raw_client import connected, message
from tests.helpers.scripted_worker import Abort, Admit, Reach, ScriptedWorker, Send, Wait
from tests.helpers.stub_client import new_id

DECLINES = Abort(grpc.StatusCode.UNAVAILABLE, "DRAINING")


class Supervision:
    """Takes the place of a broker's supervisor, which has one local worker and replaces it when it drains."""

    def __init__(self, broker: Any, monkeypatch: pytest.MonkeyPatch, claim: str) -> None:
        self.replaced: list[str] = []
        self.news = asyncio.Event()
        self.registered: list[str] = []
        self._claim = claim
        monkeypatch.setattr(broker._registry, "_on_local", self._on_local)
        monkeypatch.setattr(broker._registry, "_on_draining", self._on_draining)
        monkeypatch.setattr(broker.supervisor, "hopeful", lambda: len(self.replaced) > 0)

    def _on_draining(self, instance: str) -> None:
        self.replaced.append(instance)
        self.news.set()

    def _on_local(self, claim: str, instance: str) -> str:
        self.registered.append(instance)
        return "0" if claim == self._claim else ""


async def test_a_run_that_a_draining_worker_declines_waits_for_the_one_that_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        connected() as (broker, client),
        ScriptedWorker(local_slot="claim", slots=2) as first,
        ScriptedWorker(slots=1) as second,
    ):
        local = Supervision(broker, monkeypatch, "claim")
        lease = await first.register(broker.address)
        go, admitted = asyncio.Event(), asyncio.Event()
        held, declined = new_id(), new_id()
        first.script(held, Admit(), Reach(admitted), Wait(go), Send(message("held")))
        before = asyncio.create_task(client.run(held))
        await admitted.wait()
        first.script(declined, DECLINES)
        second.script(declined, Admit(), Send(message("elsewhere")))
        run = asyncio.create_task(client.run(declined))
        await asyncio.wait_for(local.news.wait(), 2)  # at once, and not with its next heartbeat
        assert local.replaced == [first.instance]
        await lease.beat(draining=True)  # which says nothing new
        assert local.replaced == [first.instance]
        assert not run.done()
        await second.register(broker.address)
        assert await run == ([message("elsewhere")], "OK", "")
        go.set()
        assert (await before)[1] == "OK"


async def test_a_heartbeat_that_says_so_has_it_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as (broker, _), ScriptedWorker() as worker:
        local = Supervision(broker, monkeypatch, "claim")
        lease = await worker.register(broker.address)
        for _ in range(2):
            await lease.beat(draining=True)
        assert local.replaced == [worker.instance]
        broker._registry.drains("unknown")
        assert local.replaced == [worker.instance]


async def test_only_a_claim_that_holds_makes_a_worker_local(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        connected() as (broker, _),
        ScriptedWorker(local_slot="claim") as own,
        ScriptedWorker(local_slot="0") as stranger,
        ScriptedWorker() as remote,
    ):
        local = Supervision(broker, monkeypatch, "claim")
        for worker in (own, stranger, remote):
            await worker.register(broker.address)
        slots = {instance: link.local_slot for instance, link in broker._links.items()}
        assert slots == {own.instance: "0", stranger.instance: "", remote.instance: ""}
        assert local.registered == [own.instance, stranger.instance]  # the other claims nothing


async def test_a_registration_that_fails_leaves_no_worker_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(claim: str, instance: str) -> str:
        raise ValueError(claim)

    async with connected() as (broker, client), ScriptedWorker(local_slot="claim") as worker:
        with monkeypatch.context() as patched:
            patched.setattr(broker._registry, "_on_local", fail)
            with pytest.raises((EOFError, grpc.aio.AioRpcError)):
                await worker.register(broker.address)
        assert broker.pool.workers() == ()
        assert broker._links == {}
        assert (await client.run(new_id()))[2] == "NO_WORKER_READY"
        await worker.register(broker.address)
        assert len(broker.pool) == 1


def test_a_claim_is_bounded() -> None:
    hello = registry_service_pb2.WorkerHello(
        protocol_generation=1, instance=new_id(), address="a:1", max_concurrent_runs=1, local_slot="9" * 65
    )
    with pytest.raises(Refusal) as error:
        check_hello(hello)
    assert (error.value.reason, error.value.metadata["field"]) == ("INVALID_REQUEST", "local_slot")


def test_what_a_dead_process_will_never_acknowledge_is_forgotten() -> None:
    given_up = GivenUp()
    given_up.add("a", ["1"])
    given_up.add("b", ["2"])
    given_up.forget("a")
    given_up.forget("unknown")
    assert (given_up.of("a"), given_up.of("b")) == ([], ["2"])

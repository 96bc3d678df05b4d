"""A pool over several hosts, and what becomes of its runs where the network between them is cut.

Hosts are network namespaces. Cuts are one-way or both ways; each finds runs at several moments of their life.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tests.helpers import namespaces, oracle
from tests.helpers.brisk_keepalive import PING_SECONDS, TIMEOUT_SECONDS, VARIABLE
from tests.helpers.fault_matrix import record
from tests.helpers.history import (
    CancelAnswered,
    DiscardReturned,
    Ended,
    KeepBegan,
    KeepReturned,
    SessionLost,
)
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import HOOK, QUICK_STOP, SCRIPTED, ServerProcess, serving
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import StubClient, new_id
from tests.integration.test_proxy import PROXIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.helpers.gate import Gate
    from tests.helpers.history import History
    from tests.helpers.namespaces import Host, Network

MODULE = "tests.helpers.brisk_keepalive"
EVERYWHERE = ("--listen", "0.0.0.0:0", "--insecure")
WINDOW_SECONDS, LEASE_SECONDS, GRACE_SECONDS = 1.5, 1.0, 0.3
LOST_SECONDS = LEASE_SECONDS + PING_SECONDS + TIMEOUT_SECONDS + 2.0
"""Within the lease and the pings, and something for a busy machine."""
BACK_SECONDS = 15.0
WHY = namespaces.missing()

pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY or "there are network namespaces")


@dataclass
class Pool:
    """A broker and two workers, each on a host of its own."""

    network: Network
    pipe: HistoryPipe
    hosts: dict[str, Host]
    servers: dict[str, ServerProcess]

    @property
    def broker(self) -> str:
        """Its address."""
        return self.servers["broker"].address

    def cut(self, *ways: tuple[str, str]) -> None:
        """Drop what the first sends to the second. "here" is where the test runs."""
        for sender, receiver in ways:
            self.network.cut(self.hosts[sender], self.hosts[receiver])

    def heal(self) -> None:
        """Let everything through again."""
        self.network.heal(*self.hosts.values())

    def logged(self, name: str, *words: str) -> list[str]:
        """What a server has logged with all these words."""
        return [line for line in self.servers[name].log if all(word in line for word in words)]


@pytest.fixture(scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    """Servers as in a data centre, where proxies are set for web pages. Each worker serves "scripted", and
    the same under its own name."""
    directory = tmp_path_factory.mktemp("hosts")
    pipe = HistoryPipe(directory / "history")
    with namespaces.network(directory) as network:
        hosts = {"here": network.here} | {name: network.host(name) for name in ("broker", "one", "two")}
        async with AsyncExitStack() as stack:
            pool = Pool(network, pipe, hosts, {})

            async def serve(name: str, package: str, *arguments: str) -> None:
                variables = {VARIABLE: package, **PROXIES, **pipe.variables}
                python = hosts[name].python
                process = serving(MODULE, *QUICK_STOP, *arguments, variables=variables, python=python)
                server = pool.servers[name] = await stack.enter_async_context(process)
                server.address = f"{hosts[name].address}:{server.address.rpartition(':')[2]}"

            grace = ("--session-grace-seconds", str(GRACE_SECONDS))
            heartbeat = ("--heartbeat-seconds", "0.2", "--lease-seconds", str(LEASE_SECONDS))
            await serve("broker", "env_broker", *EVERYWHERE, *heartbeat, *grace)
            window = ("--late-cancel-seconds", str(WINDOW_SECONDS))
            worker = ("--broker", pool.broker, "--env", SCRIPTED, "--hook", HOOK, *window)
            own = SCRIPTED.partition("=")[2]
            await serve("one", "env_worker", *EVERYWHERE, *worker, "--env", f"one={own}")
            fixed = f"{hosts['two'].address}:7460"
            listen = ("--listen", "0.0.0.0:7460", "--insecure", "--advertise", fixed)
            await serve("two", "env_worker", *listen, *worker, "--env", f"two={own}")
            yield pool
    pipe.close()


@pytest.fixture
async def client(pool: Pool) -> AsyncIterator[StubClient]:
    """A client on this host, whose runs the oracle judges at the end."""
    async with StubClient(pool.broker, pool.pipe.history) as client:
        await ready(client, 2)
        yield client
        await ready(client, 2)
        history = await pool.pipe.at_rest(client.runs)
    oracle.promises_hold(history, asked=client.asked)


async def ready(client: StubClient, workers: int) -> None:
    """Wait until so many workers would take a run."""
    found = -1
    async with asyncio.timeout(BACK_SECONDS):
        while found != workers:
            try:
                found = (await client.describe()).ready_workers
            except grpc.aio.AioRpcError as error:
                # The broker may have taken this host for cut off, and ends its connections then.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await asyncio.sleep(0)


def script(*steps: Any) -> dict[str, Any]:
    """A task of one trace."""
    return {"script": [["trace"], ["say", 1], *steps]}


def outcome_of(history: History, run: str, heard: str = "") -> str:
    """What was observed of a run, as the fault matrix says it."""
    ended = history.of(run, Ended)[-1]
    kept, discards = bool(history.of(run, KeepBegan)), len(history.of(run, DiscardReturned))
    parts = [heard or f"`{ended.code} {ended.reason}`".replace(" `", "`")]
    parts.append("kept, discarded once" if kept and discards == 1 else "kept" if kept else "never kept")
    parts += [f"cancel `{cancel.outcome}`" for cancel in history.of(run, CancelAnswered)[-1:]]
    return "; ".join(parts)


async def passes(client: StubClient, seconds: float) -> None:
    """Some time, as long as a run lives that does nothing until its deadline."""
    outcome = await client.run(script(["forever"]), environment="two", timeout=seconds)
    assert outcome.code == "DEADLINE_EXCEEDED"


async def test_workers_join_from_other_hosts_by_flag_alone(pool: Pool, client: StubClient) -> None:
    for name in ("one", "two"):
        assert (await client.run(script(), environment=name)).code == "OK"
        # The first said nothing of its address: it advertises the one that the broker sees.
        assert pool.logged("broker", "registered slots=", f"at {pool.servers[name].address}")


@pytest.mark.parametrize(
    ("cut", "ways"),
    [
        ("both ways", [("one", "broker"), ("broker", "one")]),
        ("worker to broker", [("one", "broker")]),
        ("broker to worker", [("broker", "one")]),
    ],
)
async def test_a_worker_that_is_cut_off(
    pool: Pool,
    client: StubClient,
    new_gate: Callable[[], Gate],
    cut: str,
    ways: list[tuple[str, str]],
) -> None:
    in_stream, in_keep = new_gate(), new_gate()
    registered = len(pool.logged("broker", "registered slots=", pool.servers["one"].address))
    replied, given_away = [await client.run(script(), environment="one") for _ in range(2)]
    streaming = client.start(script(["wait", str(in_stream.path)]), environment="one")
    await streaming.next()
    keeping = client.start(script(), environment="one", group_id=f"gate={in_keep.path}")
    await pool.pipe.seen(keeping.run, KeepBegan)
    assert replied.code == given_away.code == "OK"
    instance = replied.episode.head.worker_instance
    try:
        pool.cut(*ways)
        began = time.monotonic()
        for run in (streaming, keeping):
            outcome = await run.finish()
            assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST"), outcome
            assert instance[:8] in outcome.message
        assert time.monotonic() - began < LOST_SECONDS
        # It gets nothing new, the others do.
        assert (await client.run(script(), environment="one")).code in ("UNAVAILABLE", "NOT_FOUND")
        elsewhere = await client.run(script(), environment="scripted")
        assert elsewhere.episode.head.worker_instance != instance
        assert await client.cancel(given_away.run) == "TOO_LATE"  # nobody can say more now
        await passes(client, WINDOW_SECONDS)
        in_stream.open()
        in_keep.open()
        await pool.pipe.seen(keeping.run, KeepReturned)
    finally:
        pool.heal()
    await ready(client, 2)
    back = await client.run(script(), environment="one")
    assert back.episode.head.worker_instance == instance
    assert len(pool.logged("broker", "registered slots=", pool.servers["one"].address)) == registered + 1
    await pool.pipe.seen(keeping.run, DiscardReturned)
    # Its window would have been over, but did not close while nobody could reach it.
    assert await client.cancel(replied.run) == "DISCARDED"
    # The worker was told of the cancel that came while it was away.
    assert await client.cancel(given_away.run) == "DISCARDED"
    for run in (streaming.run, keeping.run):
        assert await client.cancel(run) == "ABORTED"
    await pool.pipe.seen(replied.run, DiscardReturned)
    fault = f"the network cut, {cut}, between a worker and the broker"
    for moment, run in (
        ("runs", streaming.run), ("in keep", keeping.run), ("replied, no session", replied.run)
    ):  # fmt: skip
        record(fault, moment, outcome_of(pool.pipe.history, run))
    record(fault, "afterwards", "same instance, new lease")


async def test_a_worker_that_the_broker_cannot_dial_any_more(
    pool: Pool, client: StubClient, new_gate: Callable[[], Gate]
) -> None:
    gate, address = new_gate(), pool.servers["one"].address
    registered = len(pool.logged("broker", "registered slots=", address))
    keeping = client.start(script(), environment="one", group_id=f"gate={gate.path}")
    await pool.pipe.seen(keeping.run, KeepBegan)
    try:
        # Its lease lives on over its own connection to the broker.
        pool.network.close_port(pool.hosts["one"], address.rpartition(":")[2])
        outcome = await keeping.finish()
        assert (outcome.code, outcome.reason) == ("UNAVAILABLE", "WORKER_LOST")
        refused = await client.run(script(), environment="one")
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "NO_WORKER_READY")
        for words in (f"cannot be reached at {address}", "--advertise"):
            assert words in refused.message
        assert (await client.run(script(), environment="scripted")).code == "OK"
    finally:
        gate.open()
        pool.heal()
    await ready(client, 2)
    assert (await client.run(script(), environment="one")).code == "OK"
    assert len(pool.logged("broker", "registered slots=", address)) == registered, "its lease is the same"
    await pool.pipe.seen(keeping.run, DiscardReturned)
    fault = "the worker's port closed to the broker"
    record(fault, "in keep", outcome_of(pool.pipe.history, keeping.run))
    record(fault, "afterwards", "same instance, same lease")


async def test_a_client_that_is_cut_off(pool: Pool, client: StubClient, new_gate: Callable[[], Gate]) -> None:
    session, gate = new_id(), new_gate()
    async with StubClient(pool.broker, pool.pipe.history) as lost:
        await SessionStream(lost.stub, pool.pipe.history).open(session)
        replied = await lost.run(script(), environment="two", session_id=session)
        assert replied.code == "OK"
        keeping = lost.start(
            script(), environment="two", session_id=session, group_id=f"gate={gate.path}", timeout=None
        )
        await pool.pipe.seen(keeping.run, KeepBegan)
        pool.pipe.history.note(SessionLost, replied.run)
        # Nobody here says anything any more, and nobody here is heard: the broker finds out by its pings.
        pool.cut(("here", "broker"), ("broker", "here"))
        try:
            await pool.pipe.seen(replied.run, DiscardReturned)
            gate.open()
            await pool.pipe.seen(keeping.run, DiscardReturned)
        finally:
            pool.heal()
        await keeping.drop()
        history = await pool.pipe.at_rest(lost.runs)
    oracle.promises_hold(history, asked=lost.asked)
    fault, nobody = "the network cut between a client and the broker", "nobody is there to hear"
    record(fault, "in keep", outcome_of(history, keeping.run, nobody))
    record(fault, "replied, not confirmed", outcome_of(history, replied.run))
    record(fault, "afterwards", "same instance, same lease")

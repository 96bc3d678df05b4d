"""Ports that are taken, and proxies that are set for web pages: neither breaks a pool unseen."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import grpc
import pytest

import env_broker.listening
import env_worker.listening
from env_broker.channel_options import SERVER_OPTIONS
from env_client import EnvClient, SyncEnvClient
from tests.helpers.history import History
from tests.helpers.pools import QUICK_STOP, ROOT, ServerProcess, serving
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEAD = "http://127.0.0.1:1"
"""Nobody listens there."""
PROXIES = {
    name: DEAD
    for scheme in ("http", "https", "grpc", "all")
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper())
}
SYNTHETIC = ("--env", "synthetic", *QUICK_STOP)
SECONDS = 20.0

Bind: TypeAlias = Callable[[grpc.aio.Server, str], int]


@pytest.fixture(scope="module")
async def servers() -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """A broker and its worker, which listen on all addresses, with dead proxies in their environment."""
    everywhere = ("--listen", "0.0.0.0:0", "--insecure")
    async with serving("env_broker", *everywhere, *QUICK_STOP, variables=PROXIES) as broker:
        broker.address = broker.address.replace("0.0.0.0", "127.0.0.1")
        arguments = ("--broker", broker.address, *everywhere, *SYNTHETIC)
        async with serving("env_worker", *arguments, variables=PROXIES) as worker:
            worker.address = worker.address.replace("0.0.0.0", "127.0.0.1")
            async with StubClient(broker.address, History()) as client:
                await client.until_serving()
            yield broker, worker


async def test_dead_proxies_break_no_hop(
    servers: tuple[ServerProcess, ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PROXIES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("no_proxy", "")
    broker, worker = servers
    for address in (broker.address, worker.address, broker.address.replace("127.0.0.1", "localhost")):
        async with EnvClient(address, env="synthetic", timeout=SECONDS) as client:
            assert (await client.run({"turns": 1})).head.ok
            assert await client.health() == "SERVING"

    def synchronous() -> bool:
        with SyncEnvClient(broker.address, env="synthetic", timeout=SECONDS) as client:
            return client.run({"turns": 1}).head.ok

    assert await asyncio.to_thread(synchronous)


@pytest.mark.parametrize(("package", "host"), [("env_broker", "127.0.0.1"), ("env_worker", "[::]")])
async def test_a_second_server_on_a_port_ends_at_once_and_says_so(
    servers: tuple[ServerProcess, ServerProcess], package: str, host: str
) -> None:
    broker, worker = servers
    port = (broker if package == "env_broker" else worker).address.rpartition(":")[2]
    arguments = ("serve", "--listen", f"{host}:{port}", "--insecure")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", package, *arguments, *(SYNTHETIC if package == "env_worker" else ())),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, words = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode not in (0, None)
    assert f"{host}:{port}" in words.decode()


@pytest.mark.parametrize("bind", [env_broker.listening.bind, env_worker.listening.bind])
async def test_a_port_is_taken_on_all_addresses_or_not_at_all(bind: Bind) -> None:
    for first in ("127.0.0.1", "0.0.0.0", "localhost"):
        server = grpc.aio.server(options=SERVER_OPTIONS)
        port = bind(server, f"{first}:0")
        await server.start()
        for second in ("127.0.0.1", "0.0.0.0", "[::]", "localhost"):
            other = grpc.aio.server(options=SERVER_OPTIONS)
            with pytest.raises(RuntimeError):
                bind(other, f"{second}:{port}")
            await other.stop(0)
        await server.stop(0)
        again = grpc.aio.server(options=SERVER_OPTIONS)
        assert bind(again, f"{first}:{port}") == port
        await again.stop(0)
    with pytest.raises(RuntimeError, match="no-such-host"):
        bind(grpc.aio.server(), "no-such-host.invalid:1")

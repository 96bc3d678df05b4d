"""What Prometheus reads of a worker."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
import urllib.request
from collections import Counter
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.parser import text_string_to_metric_families

from env_worker import ArrayKeeper
from env_worker.arrays.metrics import MetricsServer, WorkerCollector
from env_worker.arrays.scrapes import MAX_CONNECTIONS, MAX_SECONDS, ScrapeServer
from env_worker.arrays.stats import ArrayStats
from env_worker.config import SettingsError, WorkerSettings
from env_worker.listening import ServerStartError
from env_worker.server import WorkerServer
from tests.helpers.array_worker import array_worker, references
from tests.helpers.worker_server import SMALL

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

FIRST = ArrayStats(
    kept_episodes=5, kept_bytes=500, spilled_episodes=2, spilled_bytes=200, failed_keeps=1,
    incomplete_fields={"routed_experts": 3}, refused_reservations=4, fetches=6, fetched_bytes=700,
    mapped_bytes=800, released_episodes=1, discarded_episodes=2, expired_episodes=3, held_episodes=9,
    held_memory_bytes=10, held_spill_bytes=11, limit_memory_bytes=100, limit_spill_bytes=110, reservations=12,
    reserved_bytes=13, open_fetches=14, oldest_age_seconds=1.5,
)  # fmt: skip
SECOND = ArrayStats(
    kept_episodes=1, held_memory_bytes=5, oldest_age_seconds=0.5,
    incomplete_fields={"routed_experts": 1, "top_logprobs": 2},
)  # fmt: skip


def read(address: str) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Of the sample of that name and those labels."""
    [found] = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return found


def runs(**counters: int) -> Any:
    slots = SimpleNamespace(held=3, waiting=4)
    return SimpleNamespace(draining=True, slots=slots, counters=Counter(counters))


@pytest.fixture
def server() -> Any:
    server = MetricsServer("127.0.0.1:0")
    yield server
    server.close()


@pytest.fixture(scope="module")
def idle() -> Any:
    """One that nobody shows anything."""
    server = MetricsServer("127.0.0.1:0")
    yield server
    server.close()


def test_every_number_of_every_store_is_shown(server: MetricsServer) -> None:
    server.show(
        WorkerCollector("a" * 32, "1.0", runs(replied=7, discard_failures=8), lambda: [FIRST, SECOND])
    )
    found = read(server.address)
    assert value(found, "envtrio_worker_info", worker="a" * 32, version="1.0") == 1
    expected = {
        "worker_draining": 1, "runs_in_flight": 3, "runs_waiting": 4, "runs_replied_total": 7,
        "runs_confirmed_total": 0, "runs_expired_total": 0, "runs_discarded_total": 0,
        "runs_discard_failures_total": 8, "arrays_kept_episodes_total": 6, "arrays_kept_bytes_total": 500,
        "arrays_spilled_episodes_total": 2, "arrays_spilled_bytes_total": 200, "arrays_failed_keeps_total": 1,
        "arrays_refused_reservations_total": 4, "arrays_fetches_total": 6, "arrays_fetched_bytes_total": 700,
        "arrays_mapped_bytes_total": 800, "arrays_released_episodes_total": 1,
        "arrays_discarded_episodes_total": 2, "arrays_expired_episodes_total": 3, "arrays_held_episodes": 9,
        "arrays_reservations": 12, "arrays_reserved_bytes": 13, "arrays_open_fetches": 14,
        "arrays_oldest_age_seconds": 1.5,
    }  # fmt: skip
    for name, number in expected.items():
        assert value(found, f"envtrio_{name}") == number, name
    for name, medium, number in (
        ("held", "memory", 15), ("held", "spill", 11), ("limit", "memory", 100), ("limit", "spill", 110),
    ):  # fmt: skip
        assert value(found, f"envtrio_arrays_{name}_bytes", medium=medium) == number
    for field, number in (("routed_experts", 4), ("top_logprobs", 2)):
        assert value(found, "envtrio_arrays_incomplete_fields_total", field=field) == number


def test_no_number_of_a_store_is_forgotten(server: MetricsServer) -> None:
    """Whoever adds one to ArrayStats adds it here."""
    server.show(WorkerCollector("a" * 32, "1.0", runs(), lambda: [FIRST]))
    shown = "\n".join(read(server.address))
    left_out = {
        name
        for name in ArrayStats.__slots__
        if name not in shown and name.replace("_memory_", "_").replace("_spill_", "_") not in shown
    }
    assert left_out == set()


def test_names_and_texts_are_as_prometheus_wants_them(server: MetricsServer) -> None:
    server.show(WorkerCollector("a" * 32, "1.0", runs(), lambda: []))
    for name, family in read(server.address).items():
        assert name.startswith("envtrio_")
        assert family.documentation.endswith(".")
        assert family.type in ("counter", "gauge")


def test_before_there_is_a_worker_nothing_is_shown(idle: MetricsServer) -> None:
    assert read(idle.address) == {}


def test_a_taken_port_is_named_with_what_to_do(idle: MetricsServer) -> None:
    with pytest.raises(ServerStartError, match=rf"cannot listen on {idle.address}.*--metrics.*port 0"):
        MetricsServer(idle.address)


@pytest.mark.parametrize("listen", ["localhost:0", "[::1]:0"])
def test_names_and_ipv6_are_served(listen: str) -> None:
    try:
        server = MetricsServer(listen)
    except ServerStartError:
        assert listen.startswith("[::1]")
        pytest.skip("this host has no IPv6")
    try:
        assert server.address.startswith(listen.removesuffix("0"))
        assert read(server.address) == {}
    finally:
        server.close()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def served(thread: threading.Thread) -> bool:
    return "process_request_thread" in thread.name


def test_who_sends_nothing_costs_no_more_than_a_few_threads_and_not_for_long() -> None:
    now = [0.0]
    app = make_wsgi_app(CollectorRegistry())
    server = ScrapeServer("127.0.0.1", 0, app, clock=lambda: now[0])
    address = f"127.0.0.1:{server.server_port}"
    try:
        with ExitStack() as stack:
            silent = [stack.enter_context(connected(address)) for _ in range(MAX_CONNECTIONS)]
            silent[0].sendall(b"GET /metrics HTTP/1.1\r\n")
            for _ in range(3):
                with connected(address) as beyond:
                    assert beyond.recv(1) == b"", "it is closed at once"
            threads = [thread for thread in threading.enumerate() if served(thread)]
            assert len(threads) == MAX_CONNECTIONS
            now[0] = MAX_SECONDS
            assert all(connection.recv(4096) == b"" for connection in silent)
            for thread in threads:
                thread.join(10)
        assert read(address) == {}
    finally:
        server.close()


def test_the_end_of_the_server_ends_what_is_under_way() -> None:
    before = set(threading.enumerate())
    server = MetricsServer("127.0.0.1:0")
    with connected(server.address) as silent:
        silent.sendall(b"GET /metrics")
        assert read(server.address) == {}, "so the other was accepted too"
        server.close()
        with suppress(ConnectionResetError):
            assert silent.recv(1) == b""
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_who_hangs_up_leaves_nothing_on_standard_error(
    server: MetricsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for said in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n", b"\0" * 9000 + b"\n\n"):
        hasty = connected(server.address)
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
        hasty.sendall(said)
        hasty.close()
    assert read(server.address) == {}
    assert capfd.readouterr() == ("", "")


def test_without_the_extra_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingsError, match=r"--metrics is 127\.0\.0\.1:0.*pip install 'envtrio\[metrics\]'"):
        MetricsServer("127.0.0.1:0")


def serving() -> set[threading.Thread]:
    """The threads of all servers for metrics."""
    return {thread for thread in threading.enumerate() if thread.name == "metrics"}


async def test_a_worker_shows_what_it_did_until_it_ends() -> None:
    before = serving()
    async with array_worker(ArrayKeeper(), metrics="127.0.0.1:0", late_cancel_seconds=0.0) as worker:
        [reference] = references(await worker.client.run(SMALL))
        fetched = await worker.calls.fetch(reference)
        address = worker.server.metrics_address
        found = await asyncio.to_thread(read, address)
        assert value(found, "envtrio_runs_replied_total") == 1
        assert value(found, "envtrio_arrays_kept_episodes_total") == 1
        assert value(found, "envtrio_arrays_held_episodes") == 1
        assert value(found, "envtrio_arrays_fetched_bytes_total") == len(fetched.body) > 0
        assert value(found, "envtrio_arrays_held_bytes", medium="memory") > 0
        assert value(found, "envtrio_worker_draining") == 0
        assert serving() > before
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(read, address)
    assert serving() == before


@pytest.mark.parametrize(("listen", "insecure"), [("0.0.0.0:0", False), ("0.0.0.0:0", True)])
async def test_beyond_loopback_it_is_served_only_where_that_is_said(listen: str, insecure: bool) -> None:
    server = WorkerServer(WorkerSettings(environments=("synthetic",), metrics=listen, insecure=insecure))
    if insecure:
        await server.start()
        try:
            port = server.metrics_address.rpartition(":")[2]
            assert await asyncio.to_thread(read, f"127.0.0.1:{port}")
        finally:
            await server.stop(hurry=True)
    else:
        with pytest.raises(
            SettingsError, match=r"--metrics is 0\.0\.0\.0:0, which is not loopback.*--insecure"
        ):
            await server.start()


async def test_a_worker_that_cannot_have_the_address_does_not_start(idle: MetricsServer) -> None:
    worker = WorkerServer(WorkerSettings(environments=("synthetic",), metrics=idle.address))
    before = threading.active_count()
    with pytest.raises(ServerStartError, match="--metrics"):
        await worker.start()
    assert threading.active_count() <= before + 1, "asyncio's own thread aside"

"""Which addresses may be called, and what a client can be made with."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from env_client import InvalidRequestError, SyncArrayClient
from env_client.training_arrays.hosts import AllowedHosts, checked_address, dial_target
from tests.helpers.scripted_arrays import Branch, some_arrays

BRANCH = Branch(some_arrays())
REFERENCE = BRANCH.reference()


@pytest.mark.parametrize("address", ["worker-1.pool:5", "10.0.0.1:65535", "[::1]:1", "my_worker:50051"])
def test_addresses(address: str) -> None:
    assert checked_address(address, "address") == address


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        (["Worker"], True),
        (["worker:5"], True),
        (["other", "worker"], True),
        (["worker:6"], False),
        (["work"], False),
        ([], False),
        (None, True),
    ],
)
def test_hosts(hosts: list[str] | None, allowed: bool) -> None:
    listed = AllowedHosts(hosts)
    if allowed:
        listed.check(["WORKER:5"])
    else:
        with pytest.raises(InvalidRequestError, match="not on this client's list"):
            listed.check(["WORKER:5"])


@pytest.mark.parametrize(
    ("listed", "address"),
    [
        ("::1", "[::1]:5"),
        ("[::1]", "[::1]:5"),
        ("[::1]:5", "[::1]:5"),
        ("0:0:0:0:0:0:0:1", "[::1]:5"),
        ("FE80::1", "[fe80:0::1]:5"),
    ],
)
def test_hosts_of_ipv6(listed: str, address: str) -> None:
    AllowedHosts([listed]).check([address])


@pytest.mark.parametrize(
    ("listed", "address"),
    [
        ("fe80::1:5000", "[fe80::1]:5000"),  # An address of its own, and no port.
        ("[fe80::1]:5000", "[fe80::1:5000]:7"),
        ("[::1]:5", "[::1]:6"),
        ("::1:5", "[::1]:5"),
        ("a.b", "b:1"),
    ],
)
def test_an_address_is_no_other_with_a_port(listed: str, address: str) -> None:
    with pytest.raises(InvalidRequestError, match="not on this client's list"):
        AllowedHosts([listed]).check([address])


@pytest.mark.parametrize(
    "hosts", ["worker", b"worker", 5, [5], [None], [""], ["a:0"], ["a:b"], ["[::1"], ["a b"], ["unix:/tmp/x"]]
)
def test_hosts_that_are_none(hosts: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"^hosts: found") as caught:
        SyncArrayClient(hosts=hosts)
    assert caught.value.metadata == {"field": "hosts"}


def test_credentials_need_hosts() -> None:
    """Else a token would go to whatever address a worker wrote into a reference."""
    credentials = grpc.ssl_channel_credentials()
    with pytest.raises(InvalidRequestError, match="credentials without hosts"):
        SyncArrayClient(credentials=credentials)
    SyncArrayClient(credentials=credentials, hosts=["worker"]).close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"concurrency": True},
        {"concurrency": 0},
        {"concurrency": 10**9},
        {"concurrency": 2.0},
        {"lost_seconds": "1"},
        {"lost_seconds": float("nan")},
        {"lost_seconds": None},
    ],
)
def test_arguments_of_a_client(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{next(iter(arguments))}: found"):
        SyncArrayClient(**arguments)


@pytest.mark.parametrize("owner", ["", "\ud800", 5, None])
def test_an_owner_that_is_none(owner: Any) -> None:
    with SyncArrayClient() as client, pytest.raises(InvalidRequestError, match=r"^owner: found"):
        client.release_owner(BRANCH.address, owner)


def test_a_client_with_a_list_sends_nothing_elsewhere() -> None:
    with SyncArrayClient(hosts=["trusted"]) as client:
        calls = (
            lambda: client.fetch(REFERENCE),
            lambda: client.fetch_many([REFERENCE]),
            lambda: client.release(REFERENCE),
            lambda: client.release_owner(BRANCH.address, "me"),
        )
        for call in calls:
            with pytest.raises(InvalidRequestError, match=r"127\.0\.0\.1:1.*trusted"):
                call()
        assert len(client._core._links) == 0


@pytest.mark.parametrize(
    "address", ["[::1:5", "[1.2.3.4]:5", "[:::1]:5", "a:1\n", "\u0661:1", "a" * 300 + ":1"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected HOST:PORT") as caught:
        checked_address(address, "address")
    assert len(str(caught.value)) < 300


def test_a_host_named_unix_is_a_host() -> None:
    """To gRPC "unix:12345" alone is a socket file."""
    assert dial_target(checked_address("unix:12345", "address")) == "dns:///unix:12345"

"""Releases at many workers, of which some do not answer: every one is asked, and none that may be there is
passed over in silence."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.training_array_service_pb2 import ReleaseResponse

from env_client import (
    EnvError,
    FetchDeadlineError,
    InvalidRequestError,
    SyncArrayClient,
    UnavailableError,
)
from env_client.training_arrays import groups, release
from tests.helpers.scripted_arrays import INSTANCE, ScriptedArrays
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 20.0
AWAY = End(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def dead() -> Iterator[list[str]]:
    """Addresses where nothing listens, for as long as the test lasts."""
    sockets = [socket.socket() for _ in range(9)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    yield [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where something listens and never says a word, as of a process that was stopped."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_dead_workers_keep_none_of_the_others_from_being_asked(
    service: ScriptedArrays,
    dead: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release, "REFUSED_SECONDS", 0.3)
    live = service.branch().reference()
    gone = [{**live, "address": address} for address in dead]
    with SyncArrayClient(concurrency=2, lost_seconds=60) as client:
        began = time.monotonic()
        assert client.release(*gone, live) == 1
        assert time.monotonic() - began < SECONDS  # However long lost workers are tried else.
        assert caplog.text.count("nothing to release any more") == len(dead)
        with client.releasing([*gone, live]):
            pass
    assert len(service.releases) == 2


def test_every_first_try_comes_before_any_second(
    service: ScriptedArrays, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only one is asked at once, and the time is over before it is their turn."""
    monkeypatch.setattr(release, "MAX_CALLS", 1)
    asked: list[str] = []
    allowed: list[float] = []
    order = release.ArrayReleaser._send

    def noted(self: release.ArrayReleaser, each: Any, *others: Any) -> None:
        asked.append(each.address)
        order(self, each, *others)
        allowed.append(each.seconds)

    monkeypatch.setattr(release.ArrayReleaser, "_send", noted)
    service.on_release(AWAY)
    with ScriptedArrays() as other, SyncArrayClient(lost_seconds=60) as client:
        live = service.branch().reference()
        stopped = [{**live, "address": silent, "instance": digit * 32} for digit in "45"]
        references = [live, *stopped, other.branch().reference()]
        with pytest.raises(EnvError, match=silent):
            client.release(*references, timeout=0.3)
        assert asked[:4] == [service.address, silent, silent, other.address]
        assert min(allowed[:4]) > 0.2
        assert len(other.releases) == 1


def test_what_may_be_held_still_is_named(service: ScriptedArrays) -> None:
    service.on_release(AWAY, AWAY)
    with ScriptedArrays() as other, SyncArrayClient(lost_seconds=0) as client:
        away, here = service.branch().reference(), other.branch().reference()
        with pytest.raises(UnavailableError, match=f"what {service.address} may hold stays held") as caught:
            client.release(away, here)
        assert caught.value.metadata["addresses"] == service.address
        assert caught.value.metadata["released"] == "1"
        with pytest.raises(UnavailableError, match=service.address), client.releasing([away, here]):
            pass
        service.on_release(AWAY)
        with pytest.raises(KeyError), client.releasing([away, here]):
            raise KeyError
        assert len(other.releases) == 3


def test_a_refusal_tells_more_than_silence(service: ScriptedArrays, silent: str) -> None:
    service.on_release(End(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"))
    live = service.branch().reference()
    with SyncArrayClient() as client:
        with pytest.raises(EnvError, match="2 of 2 calls to release failed") as caught:
            client.release({**live, "address": silent}, live, timeout=0.3)
        assert caught.value.code == "UNAUTHENTICATED"
        with pytest.raises(FetchDeadlineError, match=r"no answer in 0\.\d+ s") as late:
            client.release({**live, "address": silent}, timeout=0.3)
        # What was left of it when that call began.
        said = float(str(late.value).partition("no answer in ")[2].partition(" s")[0])
        assert 0 < said <= 0.3


def test_a_stopped_worker_is_not_taken_for_one_that_is_gone(
    silent: str, service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "QUICK_SECONDS", 0.1)
    reference = service.branch().reference(address=silent)
    with SyncArrayClient(lost_seconds=60) as client:
        client._core._releaser._lost.add(silent, INSTANCE)  # It was tried before, and did not answer.
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=f"{silent}: there was no answer"):
            client.release(reference)
        assert time.monotonic() - began < SECONDS / 4


def test_a_worker_that_answers_is_no_longer_lost(service: ScriptedArrays) -> None:
    reference = service.branch().reference()
    with SyncArrayClient() as client:
        lost = client._core._releaser._lost
        lost.add(service.address, INSTANCE)
        assert client.release(reference) == 1
        assert not lost.has(service.address, INSTANCE)
        service.on_release(AWAY)
        lost.add(service.address, INSTANCE)
        with pytest.raises(UnavailableError):
            client.release(reference)  # One try only.
        assert len(service.releases) == 2


def test_very_many_keys_are_split(service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_KEYS", 3)
    branch = service.branch()
    with SyncArrayClient() as client:
        assert client.release(*[branch.reference(key=f"{number:032x}") for number in range(7)]) == 7
    sizes = sorted(len(request.references.keys) for request in service.releases)
    assert sizes == [1, 3, 3]
    keys = {key for request in service.releases for key in request.references.keys}
    assert len(keys) == 7


def test_a_worker_without_a_time_limit(service: ScriptedArrays, client: SyncArrayClient) -> None:
    service.on_release(ReleaseResponse(released=4))
    assert client.release(service.branch().reference(), timeout=float("inf")) == 4


def test_what_is_called_with_a_list_says_what_to_call(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    reference = service.branch().reference()
    wrong: Any = [reference]
    with pytest.raises(InvalidRequestError, match=r"release\(\*references\)"):
        client.release(wrong)
    with pytest.raises(InvalidRequestError, match=r"fetch_many\(references\)"):
        client.fetch(wrong)
    anything: list[Any] = [reference, "{}", 5]
    for one in anything:
        with pytest.raises(InvalidRequestError, match=r"fetch\(reference\) for one"):
            client.fetch_many(one)
        with (
            pytest.raises(InvalidRequestError, match=r"releasing\(\[reference\]\) for one"),
            client.releasing(one),
        ):
            pytest.fail("the block was entered")


def test_a_release_that_hangs_holds_up_no_other(service: ScriptedArrays) -> None:
    service.on_release(Hang())
    with ScriptedArrays() as other, SyncArrayClient(concurrency=1) as client:
        references = service.branch().reference(), other.branch().reference()
        with pytest.raises(FetchDeadlineError, match=f"worker 11111111 at {service.address}"):
            client.release(*references, timeout=0.3)
        assert len(other.releases) == 1

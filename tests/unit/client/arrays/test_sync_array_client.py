"""SyncArrayClient: many at once, releases, and the end."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.training_array_service_pb2 import ReleaseResponse

from env_client import (
    ArraysCorruptError,
    ArraysNotFoundError,
    EnvError,
    FetchDeadlineError,
    InvalidRequestError,
    SyncArrayClient,
    UnavailableError,
    home,
)
from tests.helpers.scripted_arrays import INSTANCE, ScriptedArrays
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach, Wait

if TYPE_CHECKING:
    from tests.helpers.scripted_arrays import Branch

GONE = End(grpc.StatusCode.NOT_FOUND, "ARRAYS_NOT_FOUND")
SECONDS = 20.0


def keys_of(service: ScriptedArrays) -> list[list[str]]:
    return [list(request.references.keys) for request in service.releases]


def key(number: int) -> str:
    return f"{number:032x}"


def marked(branch: Branch, number: int) -> Branch:
    """The branch with other bytes."""
    branch.arrays["routed_experts"][0, 0, 0] = number
    return branch


def test_many_come_in_their_order_a_few_at_once(service: ScriptedArrays) -> None:
    branches = [marked(service.branch(), number) for number in range(12)]
    go = threading.Event()
    for number, branch in enumerate(branches):
        service.on_fetch(Wait(go), *branch.answer(), key=key(number))
    told: list[tuple[int, int]] = []
    found: list[dict[str, Any]] = []
    references = [branch.reference(key=key(number)) for number, branch in enumerate(branches)]
    with SyncArrayClient(concurrency=3) as client:

        def fetch() -> None:
            found.extend(client.fetch_many(references, on_progress=lambda *now: told.append(now)))

        thread = threading.Thread(target=fetch)
        thread.start()
        service.until(lambda: service.open_fetches == 3)
        go.set()
        thread.join(SECONDS)
    assert service.most_open_fetches == 3
    assert [int(arrays["routed_experts"][0, 0, 0]) for arrays in found] == list(range(12))
    total = sum(branch.descriptor().body_bytes for branch in branches)
    assert told[-1] == (total, total)
    assert told == sorted(set(told))


def test_no_references() -> None:
    with SyncArrayClient() as client:
        assert client.fetch_many([]) == []
        assert client.release() == 0
        with client.releasing([]) as held:
            assert held == []


def test_the_first_error_ends_the_rest(service: ScriptedArrays) -> None:
    branch = service.branch()
    hanging = threading.Event()
    service.on_fetch(branch.first(), Reach(hanging), Hang(), key=key(0))
    service.on_fetch(Wait(hanging), GONE, key=key(1))
    with SyncArrayClient(concurrency=2) as client, pytest.raises(ArraysNotFoundError):
        client.fetch_many([branch.reference(key=key(number)) for number in range(9)])
    assert len(service.fetches) == 2  # The others were not sent.
    service.until(lambda: service.open_fetches == 0)


def test_a_malformed_reference_among_many_sends_nothing(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    good = service.branch().reference()
    for call in (client.fetch_many, lambda all_of_them: client.release(*all_of_them)):
        with pytest.raises(InvalidRequestError, match="key"):
            call([good, {**good, "key": "x"}])
    with pytest.raises(InvalidRequestError), client.releasing([{}]):
        pytest.fail("the block was entered")
    assert (service.fetches, service.releases) == ([], [])


def test_the_timeout_is_of_all_together(service: ScriptedArrays) -> None:
    branch = service.branch()
    service.on_fetch(Hang(), key=key(0))
    with SyncArrayClient(concurrency=1) as client, pytest.raises(FetchDeadlineError):
        client.fetch_many([branch.reference(key=key(number)) for number in range(5)], timeout=0.2)


def test_a_release_is_one_call_for_each_worker(service: ScriptedArrays, client: SyncArrayClient) -> None:
    with ScriptedArrays() as other:
        ours = [service.branch().reference(key=key(number)) for number in range(3)]
        theirs = other.branch().reference()
        service.on_release(ReleaseResponse(released=2, not_found=1))
        assert client.release(ours[0], theirs, ours[1], ours[2], ours[0]) == 3
        assert keys_of(service) == [[key(number) for number in range(3)]]
        assert keys_of(other) == [[theirs["key"]]]
    assert service.releases[0].references.instance == INSTANCE
    assert service.releases[0].protocol_generation == 1


def test_of_a_worker_that_is_gone_nothing_is_left_to_free(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    with ScriptedArrays() as gone:
        lost = gone.branch().reference()
    here = service.branch().reference()
    assert client.release(lost, here) == 1
    service.on_release(End(grpc.StatusCode.UNIMPLEMENTED))
    assert client.release(here) == 0
    with SyncArrayClient(lost_seconds=60) as patient:
        assert patient.release(lost, timeout=0.3) == 0


def test_a_release_is_repeated_until_it_is_heard(service: ScriptedArrays) -> None:
    service.on_release(End(grpc.StatusCode.UNAVAILABLE), End(grpc.StatusCode.UNAVAILABLE))
    with SyncArrayClient(lost_seconds=SECONDS) as client:
        assert client.release(service.branch().reference(), timeout=SECONDS) == 1
    assert len(service.releases) == 3


def test_a_worker_that_does_not_answer_is_an_error_and_the_others_are_told(
    service: ScriptedArrays, client: SyncArrayClient
) -> None:
    service.on_release(Hang(), End(grpc.StatusCode.INTERNAL, "INTERNAL"))
    with ScriptedArrays() as other:
        references = service.branch().reference(), other.branch().reference()
        with pytest.raises(FetchDeadlineError, match="1 references of worker 11111111"):
            client.release(*references, timeout=0.3)
        with pytest.raises(EnvError, match="INTERNAL"):
            client.release(*references)
        assert len(other.releases) == 2


def test_a_release_by_owner(service: ScriptedArrays, client: SyncArrayClient) -> None:
    service.on_release(ReleaseResponse(released=7))
    assert client.release_owner(service.address, "me") == 7
    assert service.releases[0].owner == "me"
    with pytest.raises(InvalidRequestError, match="owner"):
        client.release_owner(service.address, "")
    with pytest.raises(InvalidRequestError, match="address"):
        client.release_owner("here", "me")
    service.on_release(End(grpc.StatusCode.UNIMPLEMENTED, "NOT_OFFERED"))
    with pytest.raises(EnvError) as caught:
        client.release_owner(service.address, "me")
    assert (caught.value.code, caught.value.reason) == ("UNIMPLEMENTED", "NOT_OFFERED")
    with ScriptedArrays() as gone:
        address = gone.address
    with pytest.raises(UnavailableError, match=f"owner 'me' at {address}"):
        client.release_owner(address, "me")


def test_releasing(
    service: ScriptedArrays, client: SyncArrayClient, caplog: pytest.LogCaptureFixture
) -> None:
    reference = service.branch().reference()
    with client.releasing(iter([reference])) as held:
        assert held == [reference]
        assert service.releases == []
    assert len(service.releases) == 1
    with pytest.raises(KeyError, match="mine"), client.releasing([reference]):
        raise KeyError("mine")
    assert len(service.releases) == 2
    refuses = End(grpc.StatusCode.INTERNAL, "INTERNAL")
    service.on_release(refuses, refuses)
    with pytest.raises(KeyError, match="mine"), client.releasing([reference]):
        raise KeyError("mine")
    assert "not all of 1 references could be released" in caplog.text
    with pytest.raises(EnvError, match="INTERNAL"), client.releasing([reference]):
        pass


def test_a_release_does_not_wait_for_fetches(service: ScriptedArrays) -> None:
    branch = service.branch()
    hanging, go = threading.Event(), threading.Event()
    service.on_fetch(Reach(hanging), Wait(go), *branch.answer())
    with SyncArrayClient(concurrency=1) as client:
        thread = threading.Thread(target=client.fetch_many, args=([branch.reference()],))
        thread.start()
        assert hanging.wait(SECONDS)
        assert client.release(branch.reference()) == 1
        go.set()
        thread.join(SECONDS)


def test_ctrl_c_ends_the_fetches(service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    branch = service.branch()
    reached = threading.Event()
    service.on_fetch(branch.first(), Reach(reached), Hang())

    def interrupted(*_args: Any, **_named: Any) -> None:
        monkeypatch.undo()
        assert reached.wait(SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr("env_client.training_arrays.sync.futures.wait", interrupted)
    with SyncArrayClient() as client, pytest.raises(KeyboardInterrupt):
        client.fetch_many([branch.reference()])
    service.until(lambda: service.open_fetches == 0)


def test_idle_channels_are_closed(service: ScriptedArrays) -> None:
    now = [0.0]
    with SyncArrayClient() as client, ScriptedArrays() as other:
        links = client._core._links
        links._clock = lambda: now[0]
        for worker in (service, other):
            assert client.release(worker.branch().reference()) == 1
        assert len(links) == 2
        now[0] = 61.0
        assert client.release(service.branch().reference()) == 1
        assert len(links) == 1
        now[0] = 200.0
        assert client.release(service.branch().reference(), other.branch().reference()) == 2
        assert len(links) == 2


def test_not_too_many_idle_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("env_client.training_arrays.links._MAX_IDLE", 2)
    with SyncArrayClient() as client:
        links = client._core._links
        for port in range(1, 9):
            with links.to(f"127.0.0.1:{port}"):
                pass
        assert list(links._links) == ["127.0.0.1:7", "127.0.0.1:8"]


def test_a_client_that_was_used_before_a_fork_says_so(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = [1]
    monkeypatch.setattr(home, "os", SimpleNamespace(getpid=lambda: here[0]))
    reference = service.branch().reference()
    with SyncArrayClient() as client:
        assert client.release(reference) == 1
        here[0] = 2
        for call in (
            lambda: client.fetch(reference),
            lambda: client.fetch_many([reference]),
            lambda: client.release(reference),
            lambda: client.release_owner(service.address, "me"),
        ):
            with pytest.raises(RuntimeError, match="make the client after the fork"):
                call()
        client.close()  # Of a fork: changes nothing.
        here[0] = 1
        assert client.release(reference) == 1


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"concurrency": 1.5}, {"lost_seconds": -1}, {"lost_seconds": float("nan")}]
)
def test_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        SyncArrayClient(**wrong)


def test_errors_of_one_fetch_leave_the_next_alone(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    service.on_fetch(branch.first(body_crc32c=0), *branch.pieces())
    service.on_fetch(*branch.answer())
    with pytest.raises(ArraysCorruptError):
        client.fetch(branch.reference())
    began = time.monotonic()
    assert list(client.fetch(branch.reference())) == list(branch.arrays)
    assert time.monotonic() - began < SECONDS

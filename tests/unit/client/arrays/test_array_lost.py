"""Fetches at workers that are lost, flap, or hang, and of many of which some fail."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_client import (
    ArraysIncompleteError,
    ArraysLostError,
    ArraysNotFoundError,
    FetchDeadlineError,
    InvalidRequestError,
    SyncArrayClient,
    TokenRangeError,
    UnavailableError,
)
from env_client.training_arrays import fetch, lost
from env_client.training_arrays.lost import LostWorkers
from env_client.training_arrays.stalls import StalledError, Stalls
from env_client.training_arrays.status import MAX_RENEWALS, Retries, is_refused
from tests.helpers.clock import FakeClock
from tests.helpers.scripted_arrays import INSTANCE, ScriptedArrays
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 20.0
GONE = End(grpc.StatusCode.NOT_FOUND, "ARRAYS_NOT_FOUND")
CUT_OFF = UnavailableError("cut off")
REFUSED = UnavailableError("last error: ipv4:127.0.0.1:1: Connection refused")


def test_lost_workers_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    workers = LostWorkers(clock)
    workers.add("a:1", "x")
    assert workers.has("a:1", "x")
    assert not workers.has("a:1", "y")  # Another instance has that address by now, and may live.
    clock.advance(59)
    assert workers.has("a:1", "x")
    clock.advance(1)
    assert not workers.has("a:1", "x")
    workers.add("a:1", "x")
    workers.found("a:1", "x")
    workers.found("a:1", "x")
    assert not workers.has("a:1", "x")
    monkeypatch.setattr(lost, "_MAX_REMEMBERED", 2)
    for port in range(4):
        workers.add(f"a:{port}", "x")
    assert [workers.has(f"a:{port}", "x") for port in range(4)] == [False, False, True, True]


def test_a_lost_worker_costs_the_wait_once(service: ScriptedArrays) -> None:
    with ScriptedArrays() as gone:
        branch = gone.branch()
    with SyncArrayClient(lost_seconds=0.2) as client:
        with pytest.raises(ArraysLostError, match=r"could not be reached for 0\.2 s"):
            client.fetch(branch.reference())
        client._core._fetcher._lost_seconds = 3
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(ArraysLostError, match=r"refused.*could not be reached before"):
                client.fetch(branch.reference())
        assert time.monotonic() - began < SECONDS
        port = int(branch.address.rpartition(":")[2])
        with ScriptedArrays(port) as back:
            back.on_fetch(*branch.answer())
            assert client.fetch(branch.reference())  # It connects anew, and at once.
        assert not client._core._fetcher._lost.has(branch.address, INSTANCE)


def test_a_lost_worker_that_is_silent_gets_a_moment_only(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "QUICK_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening, SyncArrayClient(lost_seconds=60) as client:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        client._core._fetcher._lost.add(address, INSTANCE)
        with pytest.raises(ArraysLostError, match=r"no answer in 0\.1 s.*could not be reached before"):
            client.fetch(service.branch().reference(address=address))


@pytest.mark.parametrize("frames", [0, 3])
def test_a_fetch_that_brings_nothing_is_ended(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    monkeypatch.setattr(fetch, "STALL_SECONDS" if frames else "FIRST_SECONDS", 0.2)
    branch = service.branch()
    service.on_fetch(*branch.answer()[:frames], Hang())
    with SyncArrayClient() as client:
        client._core._fetcher._stalls._look_seconds = 0.05
        with pytest.raises(FetchDeadlineError, match=r"nothing more came for 0\.2 s"):
            client.fetch(branch.reference())
    service.until(lambda: service.open_fetches == 0)


def test_the_callers_own_time_is_no_stall() -> None:
    clock, looks = FakeClock(), threading.Semaphore(0)

    def now() -> float:
        if threading.current_thread().name == "envtrio-stalls":
            looks.release()
        return clock()

    class Call:
        cancels = 0

        def __iter__(self) -> Iterator[bytes]:
            return self

        def __next__(self) -> bytes:
            return b"x"

        def cancel(self) -> None:
            self.cancels += 1

    call = Call()
    frames = Stalls(0.01, now).frames(call, 60.0, 60.0)
    assert next(frames) == b"x"
    clock.advance(1000)
    for _ in range(3):  # Also one look that began after the clock went on.
        assert looks.acquire(timeout=SECONDS)
    assert next(frames) == b"x"
    frames.close()
    assert call.cancels == 0


def test_a_thread_that_could_not_be_started_is_started_for_the_next_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Call:
        def __init__(self) -> None:
            self.cancelled = threading.Event()

        def __iter__(self) -> Iterator[bytes]:
            return self

        def __next__(self) -> bytes:
            assert self.cancelled.wait(SECONDS), "nobody watches it"
            raise grpc.RpcError

        def cancel(self) -> None:
            self.cancelled.set()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    stalls = Stalls(0.01)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            next(stalls.frames(Call(), 0.05, 0.05))
    with pytest.raises(StalledError):
        next(stalls.frames(Call(), 0.05, 0.05))


def test_the_limit_counts_anew_ten_times_only() -> None:
    clock = FakeClock()
    retries = Retries(2.0, clock=clock)
    tries = 0
    while retries.delay(CUT_OFF, reached=tries) is not None:
        tries += 1
        clock.advance(1.9)
    assert MAX_RENEWALS < tries < MAX_RENEWALS + 5


def test_what_is_refused_may_be_given_up_sooner() -> None:
    clock = FakeClock()
    retries = Retries(10.0, refused_seconds=3.0, clock=clock)
    assert retries.delay(REFUSED) is not None
    clock.advance(3.0)
    assert retries.delay(CUT_OFF) is not None
    assert retries.delay(REFUSED) is None
    assert Retries(10.0, clock=clock).delay(REFUSED) is not None


def test_only_what_grpc_says_itself_is_refused() -> None:
    assert is_refused(REFUSED)
    assert not is_refused(CUT_OFF)
    assert not is_refused(UnavailableError(str(REFUSED), reason="WORKER_LOST"))
    assert not is_refused(ArraysLostError(str(REFUSED)))


def test_many_with_tokens_of_each(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    for _ in range(5):
        service.on_fetch(GONE)
    asked: list[tuple[int, int]] = []
    two = [branch.reference()] * 2
    parts: list[slice | None] = [slice(0, 3), None]
    for tokens in (slice(1, -1), parts):
        found = client.fetch_many(two, tokens=tokens, return_exceptions=True)
        assert [type(each) for each in found] == [ArraysNotFoundError] * 2
    asked = sorted((request.token_start, request.token_end) for request in service.fetches)
    assert asked == [(0, 3), (0, 6), (1, 5), (1, 5)]
    unfit: list[Any] = [[slice(0, 1)], [slice(0, 1)] * 3, 5, "abc"]
    for wrong in unfit:
        with pytest.raises(InvalidRequestError, match="tokens"):
            client.fetch_many(two, tokens=wrong)
    with pytest.raises(TokenRangeError):
        client.fetch_many(two, tokens=[None, slice(0, 7)])
    with pytest.raises(ArraysNotFoundError):
        client.fetch_many(branch.reference() for _ in range(1))


def test_many_of_which_some_fail(service: ScriptedArrays) -> None:
    branch = service.branch(incomplete={"sampling_mask": "a hole"})
    with ScriptedArrays() as gone:
        lost_one = gone.branch().reference()
    whole: Any = branch.reference()
    holed = {**whole, "arrays": {}, "incomplete": {"routed_experts": "node 3"}}
    service.on_fetch(*branch.answer())
    service.on_fetch(GONE, key="0" * 32)
    service.on_fetch(*branch.answer(), key="1" * 32)
    references = [whole, lost_one, holed, {**whole, "key": "0" * 32}, {}, {**whole, "key": "1" * 32}]
    with SyncArrayClient(lost_seconds=0, concurrency=2) as client:
        found = client.fetch_many(
            references, ["routed_experts", "top_logprobs"], timeout=SECONDS, return_exceptions=True
        )
        kinds = [type(each) for each in found]
        assert kinds == [
            dict,
            ArraysLostError,
            ArraysIncompleteError,
            ArraysNotFoundError,
            InvalidRequestError,
            dict,
        ]
        with pytest.raises(InvalidRequestError):
            client.fetch_many(references[-2:])

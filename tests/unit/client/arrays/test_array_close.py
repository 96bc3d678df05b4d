"""The end of a client, and of calls that wait behind others: nobody waits for what never began."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from env_client import (
    FetchCancelledError,
    FetchDeadlineError,
    InvalidRequestError,
    SyncArrayClient,
)
from tests.helpers.scripted_service import Hang, Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.scripted_arrays import Branch, ScriptedArrays

SECONDS = 20.0


def ends_of(*calls: Callable[[], object]) -> tuple[list[threading.Thread], list[object]]:
    """Threads that call these, and how the calls end."""
    ended: list[object] = []

    def run(call: Callable[[], object]) -> None:
        try:
            ended.append(call())
        except BaseException as error:
            ended.append(type(error))

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads, ended


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "it waits for ever"


@contextmanager
def hogged(service: ScriptedArrays, client: SyncArrayClient) -> Iterator[Branch]:
    """Another thread's fetch has all of the client's threads."""
    branch = service.branch()
    hanging = threading.Event()
    service.on_fetch(Reach(hanging), Hang())
    threads, ended = ends_of(lambda: client.fetch_many([branch.reference()]))
    assert hanging.wait(SECONDS)
    yield branch
    assert service.open_fetches == 1
    client.close()
    join(threads)
    assert ended == [FetchCancelledError]


def test_closing_ends_calls_with_more_jobs_than_threads(service: ScriptedArrays) -> None:
    branch = service.branch()
    hanging = threading.Event()
    service.on_fetch(Reach(hanging), Hang())
    client = SyncArrayClient(concurrency=1)
    threads, ended = ends_of(lambda: client.fetch_many([branch.reference()] * 3))
    assert hanging.wait(SECONDS)
    client.close()
    join(threads)
    assert ended == [FetchCancelledError]
    assert len(service.fetches) == 1


def test_closing_ends_releases_at_several_workers(service: ScriptedArrays) -> None:
    service.on_release(Hang())
    reference = service.branch().reference()
    others = [{**reference, "instance": digit * 32} for digit in "45"]
    client = SyncArrayClient(concurrency=1)
    threads, ended = ends_of(lambda: client.release(reference, *others))
    service.until(lambda: len(service.releases) == 3)
    client.close()
    join(threads)
    assert ended == [FetchCancelledError]


@pytest.mark.parametrize("many", [False, True])
def test_closing_in_progress(service: ScriptedArrays, many: bool) -> None:
    branch = service.branch()
    service.on_fetch(*branch.answer()[:2], Hang())
    client = SyncArrayClient()
    call: Any = client.fetch_many if many else client.fetch
    argument = [branch.reference()] if many else branch.reference()
    threads, ended = ends_of(lambda: call(argument, on_progress=lambda *_: client.close()))
    join(threads)
    assert ended == [FetchCancelledError]
    with pytest.raises(RuntimeError, match="closed"):
        client.fetch(branch.reference())
    service.until(lambda: service.open_fetches == 0)


def test_a_call_to_a_client_that_is_closed_right_now(service: ScriptedArrays) -> None:
    """Between its beginning and its connection."""
    with SyncArrayClient() as client:
        client._core._links.close()
        for call in (client.fetch, client.release):
            with pytest.raises(FetchCancelledError, match="closed"):
                call(service.branch().reference())


def test_a_timeout_counts_also_behind_another_threads_fetch(service: ScriptedArrays) -> None:
    client = SyncArrayClient(concurrency=1)
    with hogged(service, client) as branch, pytest.raises(FetchDeadlineError, match="did not even begin"):
        client.fetch_many([branch.reference()] * 2, timeout=0.1)
    assert len(service.fetches) == 1


def test_ctrl_c_behind_another_threads_fetch(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SyncArrayClient(concurrency=1)

    def interrupted(*_args: Any, **_named: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with hogged(service, client) as branch:
        monkeypatch.setattr("env_client.training_arrays.sync.futures.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.fetch_many([branch.reference()])


def test_what_is_wrong_with_a_timeout(service: ScriptedArrays, client: SyncArrayClient) -> None:
    branch = service.branch()
    timeouts: list[Any] = ["1", -1, float("nan"), [1]]
    for wrong in timeouts:
        with pytest.raises(InvalidRequestError, match="timeout"):
            client.fetch_many([branch.reference()], timeout=wrong)
    service.on_fetch(*branch.answer())
    assert client.fetch_many([branch.reference()], timeout=1e308)


def test_a_batch_that_gets_no_thread_is_given_up(
    service: ScriptedArrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with SyncArrayClient() as client:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="new thread"):
                client.fetch_many([service.branch().reference()])
        assert not client._core._open
        assert client.release(service.branch().reference()) == 1

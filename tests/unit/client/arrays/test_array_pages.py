"""Mapped pages, and the threads that enter them ahead of their readers."""

from __future__ import annotations

import os
import sys
import threading
import weakref

import numpy as np
import pytest

from env_client.training_arrays import prefault as array_prefault
from env_client.training_arrays.pages import Pages
from env_client.training_arrays.prefault import Prefault

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the host has no memfd")


class FakeRegion:
    """A region whose entering takes until the test says so."""

    length = 5 * array_prefault._CHUNK_BYTES

    def __init__(self, entered: list[int], go_on: threading.Event, begun: threading.Semaphore) -> None:
        self._entered, self._go_on, self._begun = entered, go_on, begun

    def enter(self, begin: int, length: int) -> None:
        self._begun.release()
        assert self._go_on.wait(10)
        self._entered.append(begin)


class FakePages:
    """Pages of such a region."""

    def __init__(self, entered: list[int], go_on: threading.Event, begun: threading.Semaphore) -> None:
        self.region = FakeRegion(entered, go_on, begun)


def prefault_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "envtrio-prefault"]


def test_few_threads_enter_all_pages_and_stop_with_the_arrays() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)
    entered: list[int] = []
    prefault = Prefault()
    mappings = [FakePages(entered, go_on, begun) for _ in range(20)]
    gone = [weakref.ref(pages) for pages in mappings]
    for pages in mappings:
        prefault.add(pages)  # type: ignore[arg-type]
    threads = prefault_threads()
    assert 1 <= len(threads) <= 2
    assert all(thread.daemon for thread in threads)
    for _ in threads:
        assert begun.acquire(timeout=10)
    del pages
    mappings.clear()
    assert not any(ref() for ref in gone), "nobody keeps them"
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert not prefault_threads()
    assert len(entered) == len(threads), "of an array that is gone nothing more is entered"
    prefault.add(FakePages(entered, go_on, begun))  # type: ignore[arg-type]
    for thread in prefault_threads():
        thread.join(10)


def test_pages_are_entered_from_the_first_to_the_last() -> None:
    go_on, entered = threading.Event(), list[int]()
    go_on.set()
    prefault = Prefault()
    pages = FakePages(entered, go_on, threading.Semaphore(0))
    prefault.add(pages)  # type: ignore[arg-type]
    for thread in prefault_threads():
        thread.join(10)
    assert sorted(entered) == list(range(0, pages.region.length, array_prefault._CHUNK_BYTES))


def test_where_no_thread_can_be_started_nothing_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    prefault = Prefault()
    pages = FakePages([], threading.Event(), threading.Semaphore(0))
    prefault.add(pages)  # type: ignore[arg-type]
    assert not prefault._jobs
    assert not prefault._running


def test_a_forked_child_enters_pages_too() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)
    busy = FakePages([], go_on, begun)
    array_prefault.PREFAULT.add(busy)  # type: ignore[arg-type]
    assert begun.acquire(timeout=10)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        entered: list[int] = []
        go_on.set()
        pages = FakePages(entered, go_on, begun)
        array_prefault.PREFAULT.add(pages)  # type: ignore[arg-type]
        for thread in prefault_threads():
            thread.join(10)
        os.write(writing, f"{len(entered)}".encode())
        os._exit(0)
    go_on.set()
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "5"
    os.waitpid(child, 0)
    for thread in prefault_threads():
        thread.join(10)


def test_pages_of_a_file() -> None:
    file = os.memfd_create("test", os.MFD_CLOEXEC)
    try:
        os.pwrite(file, b"x" * 10_000, 4096)
        pages = Pages(file, 0, 4 * 4096)
    finally:
        os.close(file)
    pages.region.enter(4096, 2**30)  # No further than they go.
    assert np.asarray(pages)[4096:14_096].tobytes() == b"x" * 10_000

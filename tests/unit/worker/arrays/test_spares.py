"""Files that are kept for the next segments: a few, within what is left of the budget, for some seconds."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from env_worker.arrays import spares as module
from env_worker.arrays.budget import Room
from env_worker.arrays.forks import close_unshared, open_unshared
from env_worker.arrays.spares import IDLE_SECONDS, LEAST_BYTES, MAX_BYTES, MAX_FILES, Spares
from tests.helpers.array_episodes import PAGE
from tests.helpers.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

PLENTY = Room(2**40, 2**20)


@pytest.fixture(autouse=True)
def small_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 1)


def new_file(size: int) -> int:
    """As a segment leaves it, of so many bytes."""
    fd = open_unshared(lambda: os.memfd_create("test", os.MFD_ALLOW_SEALING))
    os.pwrite(fd, b"\xaa" * size, 0)
    return fd


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_the_most_like_is_taken_and_has_exactly_the_size() -> None:
    spares = Spares(lambda: PLENTY)
    small, middle, large = (new_file(pages * PAGE) for pages in (5, 10, 20))
    for fd, pages in ((small, 5), (middle, 10), (large, 20)):
        spares.add(fd, pages * PAGE)
    assert spares.taken == Room(35 * PAGE, 3)
    assert spares.take(41 * PAGE) is None
    assert spares.take(2 * PAGE) is None
    for wanted, fd in ((9, middle), (9, small), (40, large)):
        assert spares.take(wanted * PAGE) == fd
        assert os.fstat(fd).st_size == wanted * PAGE
        close_unshared(fd)
    assert spares.taken == Room(0, 0)


def test_of_those_that_are_as_like_the_latest_is_taken_so_that_the_others_get_old() -> None:
    spares = Spares(lambda: PLENTY)
    fds = [new_file(PAGE) for _ in range(3)]
    for fd in fds:
        spares.add(fd, PAGE)
    assert spares.take(PAGE) == fds[-1]
    close_unshared(fds[-1])
    spares.close()


def test_a_file_of_few_pages_is_not_worth_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", LEAST_BYTES)
    spares = Spares(lambda: PLENTY)
    small, large = new_file(LEAST_BYTES - PAGE), new_file(LEAST_BYTES)
    spares.add(small, LEAST_BYTES - PAGE)
    spares.add(large, LEAST_BYTES)
    assert (is_open(small), is_open(large), spares.taken) == (False, True, Room(LEAST_BYTES, 1))
    spares.close()


def test_there_are_few_and_they_are_not_large(monkeypatch: pytest.MonkeyPatch) -> None:
    spares = Spares(lambda: PLENTY)
    fds = [new_file(PAGE) for _ in range(MAX_FILES + 1)]
    for fd in fds:
        spares.add(fd, PAGE)
    assert [is_open(fd) for fd in fds] == [True] * MAX_FILES + [False]
    spares.clear()
    spares.clear()
    assert not any(map(is_open, fds))
    assert MAX_BYTES == 2**28
    monkeypatch.setattr(module, "MAX_BYTES", 3 * PAGE)
    fds = [new_file(2 * PAGE) for _ in range(2)]
    for fd in fds:
        spares.add(fd, 2 * PAGE)
    assert [is_open(fd) for fd in fds] == [True, False]
    spares.close()


def test_all_stores_of_the_process_have_the_same_ones() -> None:
    mine, others = Spares(lambda: PLENTY), Spares(lambda: PLENTY)
    fds = [new_file(PAGE) for _ in range(MAX_FILES + 1)]
    for number, fd in enumerate(fds):
        (mine, others)[number % 2].add(fd, PAGE)
    assert [is_open(fd) for fd in fds] == [True] * MAX_FILES + [False]
    assert mine.taken == others.taken == Room(MAX_FILES * PAGE, MAX_FILES)
    assert mine.take(PAGE) == fds[MAX_FILES - 1]
    close_unshared(fds[MAX_FILES - 1])
    others.clear()
    assert (mine.taken, any(map(is_open, fds))) == (Room(0, 0), False)


class Short:
    """A system that is short of something so many times; `meanwhile` is done before it says so."""

    def __init__(self, times: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.times = times
        self.meanwhile = meanwhile
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls > self.times:
            return "there"
        self.meanwhile()
        raise OSError(errno.ENOMEM, "short")


def test_a_system_that_is_short_is_asked_again_when_they_are_freed() -> None:
    spares = Spares(lambda: PLENTY)
    spares.add(new_file(PAGE), PAGE)
    assert spares.relieved(Short(1), (errno.EMFILE, errno.ENOMEM)) == "there"
    assert spares.taken == Room(0, 0)
    spares.add(new_file(PAGE), PAGE)
    short = Short(99)
    with pytest.raises(OSError, match="short"):
        spares.relieved(short, (errno.ENOMEM,))
    assert short.calls == 2


@pytest.mark.parametrize("how", ["cleared", "expired", "given way", "cut", "not taken"])
def test_whoever_has_freed_them_meanwhile(how: str) -> None:
    clock, room = FakeClock(), PLENTY
    spares, others = Spares(lambda: PLENTY), Spares(lambda: room, clock)
    fd = new_file(2 * PAGE)
    others.add(fd, 2 * PAGE)

    def free() -> None:
        nonlocal room
        clock.advance(IDLE_SECONDS)
        if how == "given way":
            room = Room(PAGE, 9)
        elif how == "not taken":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        {
            "cleared": others.clear,
            "expired": others.expire,
            "given way": others.give_way,
            "cut": lambda: others.take(PAGE),
            "not taken": lambda: others.take(2 * PAGE),
        }[how]()

    assert spares.relieved(Short(1, free), (errno.ENOMEM,)) == "there"
    assert (spares.taken, is_open(fd)) == (Room(0, 0), how == "cut")
    close_unshared(fd)


def test_where_none_was_freed_it_fails_at_once() -> None:
    """Also where one was freed before, or has only been taken."""
    spares, fd = Spares(lambda: PLENTY), new_file(PAGE)
    spares.add(new_file(PAGE), PAGE)
    spares.clear()
    spares.add(fd, PAGE)
    short = Short(1, lambda: spares.take(2 * PAGE))
    with pytest.raises(OSError, match="short"):
        spares.relieved(short, (errno.ENOMEM,))
    assert (short.calls, is_open(fd)) == (1, True)
    close_unshared(fd)


def test_what_has_another_cause_frees_none() -> None:
    spares, short = Spares(lambda: PLENTY), Short(1)
    spares.add(new_file(PAGE), PAGE)
    with pytest.raises(OSError, match="short"):
        spares.relieved(short, (errno.EMFILE,))
    assert (short.calls, spares.taken) == (1, Room(PAGE, 1))
    spares.close()


@pytest.mark.parametrize("ask", ["take", "give_way"])
@pytest.mark.parametrize(
    ("room", "left"), [(Room(2 * PAGE, 9), 2), (Room(9 * PAGE, 1), 1), (Room(-1, -1), 0)]
)
def test_they_give_way_to_what_is_held_the_oldest_first(room: Room, left: int, ask: str) -> None:
    there = PLENTY
    spares = Spares(lambda: there)
    fds = [new_file(PAGE) for _ in range(4)]
    for fd in fds:
        spares.add(fd, PAGE)
    there = room
    if ask == "take":
        assert spares.take(99 * PAGE) is None
    else:
        spares.give_way()
    assert spares.taken.segments == left
    assert [is_open(fd) for fd in fds] == [False] * (4 - left) + [True] * left
    spares.close()


@pytest.mark.parametrize("there", [Room(PAGE - 1, 9), Room(9 * PAGE, 0)])
def test_none_comes_where_the_others_have_yet_to_give_way(there: Room) -> None:
    room = PLENTY
    spares = Spares(lambda: room)
    early, late = new_file(PAGE), new_file(PAGE)
    spares.add(early, PAGE)
    room = there
    spares.add(late, PAGE)
    assert (is_open(early), is_open(late)) == (True, False)
    spares.close()


def test_what_nobody_takes_is_given_back() -> None:
    clock = FakeClock()
    spares = Spares(lambda: PLENTY, clock)
    first, second = new_file(PAGE), new_file(PAGE)
    spares.add(first, PAGE)
    clock.advance(1)
    spares.add(second, PAGE)
    clock.advance(IDLE_SECONDS - 1.1)
    spares.expire()
    assert spares.taken.segments == 2
    clock.advance(0.1)
    spares.expire()
    assert (is_open(first), is_open(second)) == (False, True)
    clock.advance(1)
    spares.expire()
    assert (is_open(second), spares.taken) == (False, Room(0, 0))


def test_what_comes_after_the_end_is_closed() -> None:
    spares = Spares(lambda: PLENTY)
    early, late = new_file(PAGE), new_file(PAGE)
    spares.add(early, PAGE)
    spares.close()
    spares.add(late, PAGE)
    assert (is_open(early), is_open(late), spares.take(PAGE)) == (False, False, None)


@pytest.mark.parametrize(
    "seal", [fcntl.F_SEAL_SEAL, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, 16]
)
def test_what_another_process_has_frozen_unasked_is_not_taken(seal: int) -> None:
    spares, fd = Spares(lambda: PLENTY), new_file(PAGE)
    spares.add(fd, PAGE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
    assert spares.take(PAGE) is None
    assert (is_open(fd), spares.taken) == (False, Room(0, 0))

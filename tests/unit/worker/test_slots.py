"""Places for runs, and the queue before them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.slots import Place, QueueFullError, Slots


def test_places_go_to_priority_then_first_come() -> None:
    slots = Slots(1, 4)
    first = slots.enter(0)
    waiting = [slots.enter(priority) for priority in (0, 5, 5, -1)]
    assert first.granted.rung
    order = []
    holder = first
    while waiting:
        slots.leave(holder)
        (holder,) = [place for place in waiting if place.granted.rung]
        waiting.remove(holder)
        order.append(-holder.rank[0])
    assert order == [5, 5, 0, -1]


def test_beyond_the_queue_it_is_refused_with_the_numbers() -> None:
    slots = Slots(1, 1)
    slots.enter(0)
    slots.enter(0)
    assert slots.full
    with pytest.raises(QueueFullError, match=r"1 runs wait .* the limit is 1"):
        slots.enter(9)
    assert (slots.held, slots.waiting) == (1, 1)


def test_the_queue_is_bounded_in_bytes() -> None:
    slots = Slots(1, 9, 100)
    first = slots.enter(0, 1000)  # what does not wait is not counted
    slots.enter(0, 60)
    assert not slots.full
    with pytest.raises(
        QueueFullError, match=r"1 runs that wait .* 60 bytes, this one has 41, the limit is 100"
    ):
        slots.enter(0, 41)
    last = slots.enter(0, 40)
    assert slots.full
    with pytest.raises(QueueFullError) as error:
        slots.check(1)
    assert (error.value.value, error.value.limit) == (101, 100)
    slots.leave(last)
    assert slots.waiting_bytes == 60
    slots.leave(first)
    assert (slots.waiting, slots.waiting_bytes) == (0, 0)


def test_a_request_over_the_limit_waits_where_nothing_else_does() -> None:
    slots = Slots(1, 9, 100)
    first = slots.enter(0)
    large = slots.enter(0, 101)  # or it could never run while the worker is busy
    with pytest.raises(QueueFullError):
        slots.enter(0, 1)
    slots.leave(first)
    assert large.granted.rung
    slots.enter(0, 1)
    with pytest.raises(QueueFullError):
        slots.enter(0, 101)


def test_leaving_twice_changes_nothing_and_leaving_the_queue_wakes_who_waits() -> None:
    slots = Slots(1, 2)
    first, second = slots.enter(0), slots.enter(0)
    slots.leave(second)
    slots.leave(second)
    assert second.granted.rung
    assert (slots.held, slots.waiting) == (1, 0)
    slots.leave(first)
    slots.leave(first)
    assert (slots.held, slots.waiting) == (0, 0)


@given(st.lists(st.tuples(st.booleans(), st.integers(-2, 2), st.integers(0, 400)), max_size=300))
def test_counts_are_right_and_no_place_is_idle_while_someone_waits(
    steps: list[tuple[bool, int, int]],
) -> None:
    slots = Slots(3, 100, 2000)
    alive: list[Place] = []
    for enters, priority, which in steps:
        if enters:
            with contextlib.suppress(QueueFullError):
                alive.append(slots.enter(priority, which))
        elif alive:
            slots.leave(alive.pop(which % len(alive)))
        granted = [place for place in alive if place.granted.rung]
        assert slots.held == len(granted) <= 3
        assert slots.waiting == len(alive) - len(granted)
        assert slots.waiting == 0 or slots.held == 3
        waiting = [place.size for place in alive if not place.granted.rung]
        assert slots.waiting_bytes == sum(waiting)
        assert slots.waiting_bytes <= 2000 or len(waiting) == 1
    for place in alive:
        slots.leave(place)
    assert (slots.held, slots.waiting, slots.waiting_bytes) == (0, 0, 0)

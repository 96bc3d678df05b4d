"""The queue of runs that wait for a worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_broker.waiters import QueueFullError, Waiter, Waiters


def test_waiters_go_by_priority_then_order() -> None:
    waiters: Waiters[str] = Waiters(limit=10)
    for value, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
        waiters.push("env", value, priority)
    order = [waiter.value for _ in range(5) if (waiter := waiters.pop(["env"])) is not None]
    assert order == ["b", "d", "a", "c", "e"]
    assert waiters.pop(["env"]) is None


def test_a_worker_takes_the_first_waiter_of_all_that_it_serves() -> None:
    waiters: Waiters[str] = Waiters(limit=10)
    waiters.push("a", "first")
    waiters.push("b", "second")
    waiters.push("c", "not served")
    assert [waiter.value for _ in range(2) if (waiter := waiters.pop(["b", "a"]))] == ["first", "second"]
    assert waiters.pop(["b", "a"]) is None
    assert len(waiters) == 1


def test_a_waiter_leaves_once() -> None:
    waiters: Waiters[str] = Waiters(limit=10)
    first, second, third = (waiters.push("e", value) for value in "abc")
    assert waiters.remove(second)
    assert not waiters.remove(second)
    assert waiters.pop(["e"]) is first
    assert not waiters.remove(first)
    assert waiters.remove(third)
    assert not waiters.remove(third)
    assert len(waiters) == 0


def test_waiters_are_counted_by_what_could_carry_them() -> None:
    waiters: Waiters[str] = Waiters(limit=10)
    for environment in ("a", "a", "b", ""):
        waiters.push(environment, "x")
    assert [waiters.count(names) for names in (["a"], ["a", "a", ""], ["c"], [])] == [2, 3, 0, 0]


def test_the_queue_is_bounded() -> None:
    waiters: Waiters[str] = Waiters(limit=1)
    waiter = waiters.push("e", "a")
    with pytest.raises(QueueFullError, match="1 runs wait for a worker, the limit is 1"):
        waiters.push("f", "b")
    waiters.remove(waiter)
    waiters.push("f", "b")


def test_who_had_its_turn_in_vain_waits_where_it_was_before() -> None:
    waiters: Waiters[str] = Waiters(limit=2)
    first = waiters.order()
    second = waiters.push("e", "second")
    assert waiters.pop(["e"]) is second
    for value in ("third", "urgent"):
        waiters.push("e", value, priority=int(value == "urgent"))
    with pytest.raises(QueueFullError):
        waiters.push("e", "first", order=first)
    waiters.push("e", "first", order=first, returns=True)
    waiters.push("e", "second", order=second.order, returns=True)
    order = [waiter.value for _ in range(4) if (waiter := waiters.pop(["e"])) is not None]
    assert order == ["urgent", "first", "second", "third"]
    assert len(waiters) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.sampled_from("ab"), st.integers(-2, 2)),
            st.tuples(st.just("pop"), st.sampled_from(["a", "b", "ab"]), st.just(0)),
            st.tuples(st.just("remove"), st.just(""), st.integers(0, 40)),
        ),
        max_size=40,
    )
)
def test_the_queue_behaves_as_a_sorted_list(steps: list[tuple[str, str, int]]) -> None:
    waiters: Waiters[int] = Waiters(limit=8)
    model: list[Waiter[int]] = []
    seen: list[Waiter[int]] = []
    for step, environment, number in steps:
        if step == "push" and len(model) < 8:
            seen.append(waiters.push(environment, len(seen), number))
            model.append(seen[-1])
        elif step == "pop":
            served = [waiter for waiter in model if waiter.environment in environment]
            expected = min(served, key=lambda waiter: (waiter.rank, waiter.order), default=None)
            assert waiters.pop(list(environment)) is expected
            if expected is not None:
                model.remove(expected)
        elif step == "remove" and number < len(seen):
            assert waiters.remove(seen[number]) is (seen[number] in model)
            model = [waiter for waiter in model if waiter is not seen[number]]
        assert len(waiters) == len(model)

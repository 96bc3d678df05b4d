"""The table that says whether more arrays may be held."""

from __future__ import annotations

import pytest

from env_worker.arrays.budget import RECENT_EPISODES, ArrayBudget
from env_worker.arrays.errors import ArrayBudgetError, ArrayBudgetExceededError


def held(budget: ArrayBudget) -> tuple[int, int]:
    return budget.held("memory"), budget.held("spill")


def test_memory_first_then_the_spill_folder_then_an_error_that_names_both() -> None:
    budget = ArrayBudget(100, 50, 10)
    assert [budget.place(60), budget.place(50), budget.place(40)] == ["memory", "spill", "memory"]
    assert held(budget) == (100, 50)
    with pytest.raises(ArrayBudgetExceededError) as error:
        budget.place(1)
    assert "1 bytes do not fit: 100 of 100 bytes of memory and 50 of 50 bytes of spill" in str(error.value)
    assert "--array-memory-bytes" in str(error.value)
    assert "release arrays that were fetched, raise --array-memory-bytes" in str(error.value)
    assert "local workers of a broker: ENV_WORKER_ARRAY_MEMORY_BYTES" in str(error.value)
    assert "--array-spill-dir" in str(error.value)
    with pytest.raises(ArrayBudgetExceededError) as error:
        budget.place(101)
    assert "each limit is below one such trace; raise --array-memory-bytes" in str(error.value)
    assert "release" not in str(error.value), "that would not help"
    assert held(budget) == (100, 50)


def test_what_is_freed_can_be_taken_again() -> None:
    budget = ArrayBudget(10, 0, 1)
    for _ in range(3):
        budget.free(budget.place(10), 10)
    assert budget.held() == budget.segments == 0


def test_nothing_is_freed_that_is_not_held() -> None:
    budget = ArrayBudget(10, 10, 10)
    budget.place(4)
    for medium, size in (("memory", 5), ("spill", 1), ("memory", -1)):
        with pytest.raises(ValueError, match="freed, but only"):
            budget.free(medium, size)  # type: ignore[arg-type]
    assert held(budget) == (4, 0)
    room = budget.reserve()
    budget.unreserve(room)
    with pytest.raises(ValueError, match="no such reservation is open"):
        budget.unreserve(room)


def test_segments_are_bounded_too() -> None:
    budget = ArrayBudget(100, 0, 2)
    budget.reserve()
    budget.place(1)
    budget.place(1)
    with pytest.raises(ArrayBudgetExceededError, match=r"2 segments .* limit is 2, .*ulimit -n"):
        budget.place(1)
    with pytest.raises(ArrayBudgetError, match=r"2 segments are held and 1 runs .* limit is 2") as error:
        budget.reserve()
    assert (error.value.value, error.value.limit) == (4, 2)


def test_before_the_first_episode_only_a_full_budget_refuses() -> None:
    budget = ArrayBudget(10, 0, 1000)
    for _ in range(100):
        budget.reserve()
    budget.place(10)
    with pytest.raises(ArrayBudgetError) as error:
        budget.reserve()
    assert (error.value.value, error.value.limit) == (10, 10)


def test_a_run_reserves_as_much_as_the_largest_recent_episode_took() -> None:
    budget = ArrayBudget(60, 40, 1000)
    budget.note(30, 1)
    budget.note(5, 1)
    medium = budget.place(30)
    rooms = [budget.reserve(), budget.reserve()]
    assert budget.reserved == 60
    with pytest.raises(ArrayBudgetError) as error:
        budget.reserve()
    assert (error.value.value, error.value.limit) == (30 + 10 + 3 * 30, 100), "10 of spill are of no use"
    assert "30 of 60 bytes of memory and 0 of 40 bytes of spill are held" in str(error.value)
    assert "one more run, 30 bytes in one medium as the largest recent episode took: " in str(error.value)
    assert "are held, and 2 admitted runs may take as much each; release" in str(error.value)
    assert budget.reservations == 2
    budget.free(medium, 30)
    rooms.append(budget.reserve())
    assert budget.reserved == 90
    for room in rooms:
        budget.unreserve(room)
    assert budget.reserved == 0


@pytest.mark.parametrize(("memory", "spill", "runs"), [(10, 10, 2), (11, 1, 1), (5, 30, 5)])
def test_what_is_left_of_two_media_is_no_room_together(memory: int, spill: int, runs: int) -> None:
    budget = ArrayBudget(memory, spill, 1000)
    budget.note(6, 1)
    for _ in range(runs):
        budget.reserve()
    with pytest.raises(ArrayBudgetError) as error:
        budget.reserve()
    assert error.value.value > error.value.limit == memory + spill
    for _ in range(runs):
        budget.place(6)


def test_an_episode_that_lay_in_several_media_does_not_refuse_all_others() -> None:
    budget = ArrayBudget(10, 10, 1000)
    media = [budget.place(8), budget.place(8)]
    budget.note(16, 2)
    with pytest.raises(ArrayBudgetError):
        budget.reserve()
    for medium in media:
        budget.free(medium, 8)
    budget.reserve()


def test_what_did_not_fit_counts_too() -> None:
    budget = ArrayBudget(100, 40, 1000)
    medium = budget.place(60)
    budget.note_failed([48])
    with pytest.raises(ArrayBudgetError, match="no room"):
        budget.reserve()
    budget.free(medium, 60)
    room = budget.reserve()
    assert room.bytes == 48
    budget.unreserve(room)


@pytest.mark.parametrize("sizes", [[101], [90, 51], [1] * 11])
def test_what_can_never_fit_has_nobody_else_refused(sizes: list[int]) -> None:
    budget = ArrayBudget(100, 40, 10)
    budget.note(20, 1)
    budget.note_failed(sizes)
    budget.place(20)
    assert budget.reserve().bytes == 20


def test_a_reservation_stands_for_its_size_also_when_that_is_not_recent_any_more() -> None:
    budget = ArrayBudget(100, 0, 1000)
    budget.note(60, 1)
    room = budget.reserve()
    for _ in range(RECENT_EPISODES):
        budget.note(1, 1)
    with pytest.raises(ArrayBudgetError):
        budget.reserve()
    budget.unreserve(room)
    assert budget.reserve().bytes == 1


def test_the_last_byte_may_be_reserved() -> None:
    for capacity, runs in ((89, 2), (90, 3)):
        budget = ArrayBudget(capacity, 0, 1000)
        budget.note(30, 1)
        for _ in range(runs):
            budget.reserve()
        with pytest.raises(ArrayBudgetError):
            budget.reserve()


def test_a_large_episode_is_forgotten_after_so_many() -> None:
    budget = ArrayBudget(100, 0, 1000)
    budget.note(100, 7)
    for _ in range(RECENT_EPISODES - 1):
        budget.note(1, 1)
    room = budget.reserve()
    with pytest.raises(ArrayBudgetError):
        budget.reserve()
    budget.unreserve(room)
    budget.note(1, 1)
    for _ in range(100):
        budget.reserve()
    assert budget.reserved == 100


def test_keeping_may_take_what_is_reserved_for_others() -> None:
    budget = ArrayBudget(10, 0, 1000)
    budget.note(5, 1)
    budget.reserve()
    budget.reserve()
    assert budget.place(10) == "memory"

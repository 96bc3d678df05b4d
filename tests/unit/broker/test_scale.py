"""When an elastic pool grows and shrinks."""

from __future__ import annotations

import pytest

from env_broker.pool import Load, Pool, Worker
from env_broker.scale import SHORT_SECONDS, Decision, Local, Scale

IDLE, HEARTBEAT, LEASE = 10.0, 1.0, 5.0
NOTHING = Decision()


class Scene:
    """A pool with workers of so many slots, whose heartbeats come when the test says so."""

    def __init__(
        self, *, least: int = 1, most: int = 4, slots: int = 10, told: bool = True, workers: int = 0
    ) -> None:
        self.now = 0.0
        self.slots = slots
        self.pool = Pool(lease_seconds=LEASE)
        self.scale = Scale(
            least=least,
            most=most,
            idle_seconds=IDLE,
            heartbeat_seconds=HEARTBEAT,
            slots=slots if told else None,
        )
        self.spared = ""
        self.own: list[Worker] = [self.join(f"w{number}") for number in range(workers)]

    def join(self, instance: str, slots: int = 0) -> Worker:
        self.pool.add(instance, "l", f"{instance}:1", ["e"], slots or self.slots, 60.0, self.now)
        worker = self.pool.get(instance)
        assert worker is not None
        return worker

    def take(self, worker: Worker, runs: int) -> None:
        for _ in range(runs):
            self.pool.acquire(worker)

    def beat(self, **load: int) -> None:
        for worker in self.pool.workers():
            assert self.pool.heartbeat(worker.instance, "l", self.now, load=Load(running=worker.busy, **load))

    def look(
        self,
        *,
        starting: int = 0,
        lost: int = 0,
        failing: int = 0,
        leaving: int = 0,
        queued: int = 0,
        stranded: int = 0,
    ) -> Decision:
        kept = [worker.instance for worker in self.own]
        local = Local(kept, len(kept) + starting + lost, starting, failing, leaving)
        decision = self.scale.decide(self.now, self.pool.workers(), local, queued, stranded)
        self.spared = decision.spare
        self.pool.spare(decision.spare)
        return decision._replace(spare="")

    def quiet(self, seconds: float, **load: int) -> list[Decision]:
        """Time goes on, with heartbeats, and nothing else happens."""
        decisions = []
        for _ in range(int(seconds)):
            self.now += 1.0
            self.beat(**load)
            decisions.append(self.look())
        return decisions


@pytest.mark.parametrize(
    ("taken", "queued", "starting", "grow"),
    [
        (0, 0, 0, 0),
        (8, 0, 0, 0),
        (9, 0, 0, 1),  # 90 % of 10
        (10, 7, 0, 1),
        (10, 8, 0, 2),  # 18 of 20 are 90 % again
        (10, 8, 1, 1),
        (10, 7, 1, 0),
        (10, 1000, 0, 3),  # no more than there may be
        (10, 1000, 2, 1),
        (10, 1000, 3, 0),
    ],
)
def test_growth_until_there_is_room_again(taken: int, queued: int, starting: int, grow: int) -> None:
    scene = Scene(workers=1)
    scene.take(scene.own[0], taken)
    assert scene.look(queued=queued, starting=starting) == Decision(grow=grow)


def test_one_slot_each_and_the_whole_pool_taken() -> None:
    scene = Scene(slots=1, workers=1)
    scene.take(scene.own[0], 1)
    assert scene.look() == Decision(grow=1)
    assert scene.look(starting=1) == NOTHING


def test_runs_of_other_callers_count() -> None:
    scene = Scene(workers=1)
    scene.pool.heartbeat("w0", "l", 0.0, load=Load(running=9))
    assert scene.look() == Decision(grow=1)


def test_nobody_knows_the_slots_of_a_worker_that_never_registered() -> None:
    scene = Scene(told=False)
    assert scene.look(starting=1, queued=5) == NOTHING
    scene.own.append(scene.join("w0", slots=2))
    assert scene.look(queued=5) == Decision(grow=2)  # 5 of 6 are less than 90 %
    told = Scene()
    assert told.look(starting=1, queued=20) == Decision(grow=2)


def test_a_lost_worker_has_a_place_but_no_slots() -> None:
    scene = Scene(workers=1)
    scene.take(scene.own[0], 9)
    assert scene.look(lost=2) == Decision(grow=1)
    assert scene.look(lost=3) == NOTHING


def test_others_are_started_for_workers_that_lost_their_lease_and_do_not_come_back() -> None:
    scene = Scene(least=2, most=3, workers=1)
    assert scene.look(lost=1) == NOTHING  # one that has died is started again within a moment
    scene.now += SHORT_SECONDS - 0.01
    assert scene.look(lost=1) == NOTHING
    scene.now += 0.01
    assert scene.look(lost=1) == Decision(grow=1)  # although no run waits: none would before there is one
    assert scene.look(lost=1, starting=1) == NOTHING
    scene.own.clear()
    scene.now += 60.0
    assert scene.look(lost=3) == NOTHING  # no more than there may be
    assert scene.look(lost=2) == NOTHING  # the short of it began when the new one was lost
    scene.now += SHORT_SECONDS
    assert scene.look(lost=2) == Decision(grow=1)


def test_workers_that_lost_their_lease_do_not_make_others_too_many() -> None:
    scene = Scene(least=2, workers=2)
    scene.now = 20.0
    for _ in range(20):
        scene.now += 1.0
        scene.beat()
        assert scene.look(lost=1) == NOTHING
    assert scene.look(lost=1, starting=1, failing=1) == Decision(give_up_start=True)
    scene.own.pop()
    assert scene.look(lost=1, starting=1, failing=1) == NOTHING


def test_more_than_there_may_be_is_no_fault() -> None:
    scene = Scene(most=1, workers=2)
    for worker in scene.own:
        scene.take(worker, 10)
    assert scene.look() == NOTHING


def test_a_worker_that_has_had_nothing_for_long_enough_is_drained_one_at_a_time() -> None:
    scene = Scene(workers=3)
    assert set(scene.quiet(10)) == {NOTHING}
    scene.now += 1.0
    assert scene.look() == Decision(drain="w0")
    assert scene.look() == Decision(drain="w0")  # deciding is not doing
    scene.pool.drain("w0")
    scene.own.pop(0)
    assert scene.look(leaving=1) == NOTHING  # while it drains
    scene.pool.remove("w0", "l")
    assert scene.look(leaving=1) == NOTHING  # and ends
    assert scene.look() == Decision(drain="w1")
    scene.pool.remove("w1", "l")
    scene.own.pop(0)
    assert scene.look() == NOTHING  # the least


def test_the_one_that_was_idle_for_longest_goes_first() -> None:
    scene = Scene(workers=2)
    scene.quiet(5)
    scene.take(scene.own[0], 1)
    scene.quiet(2)
    scene.pool.release(scene.own[0])
    assert scene.quiet(5)[-1] == Decision(drain="w1")


def test_a_run_between_two_looks_is_seen() -> None:
    scene = Scene(workers=2)
    scene.quiet(9)
    for worker in scene.own:
        scene.take(worker, 1)
        scene.pool.release(worker)
    assert set(scene.quiet(10)) == {NOTHING}
    assert scene.quiet(1) == [Decision(drain="w0")]


@pytest.mark.parametrize("load", [{"open_windows": 1}, {"held_arrays": 1}])
def test_a_worker_with_open_windows_or_held_arrays_is_never_drained(load: dict[str, int]) -> None:
    scene = Scene(workers=2)
    assert set(scene.quiet(100, **load)) == {NOTHING}
    assert set(scene.quiet(10)) == {NOTHING}
    assert scene.quiet(1) == [Decision(drain="w0")]


def test_what_a_worker_still_runs_by_its_own_word_counts() -> None:
    scene = Scene(workers=2)
    for _ in range(30):
        scene.now += 1.0
        for worker in scene.own:
            scene.pool.heartbeat(worker.instance, "l", scene.now, load=Load(running=1))
        assert scene.look() == NOTHING


def test_only_a_heartbeat_that_was_sent_after_its_last_run_counts() -> None:
    scene = Scene(workers=2)
    scene.now = 30.0
    assert scene.look() == NOTHING
    scene.now = 30.5
    scene.beat()  # may have left before
    scene.now = 60.0
    assert scene.look() == NOTHING
    scene.beat()
    assert scene.look() == Decision(drain="w0")
    scene.pool.add("w0", "l2", "w0:1", ["e"], 10, 60.0, scene.now)  # a new lease has yet to report
    scene.pool.add("w1", "l2", "w1:1", ["e"], 10, 60.0, scene.now)
    assert scene.look() == NOTHING


def test_what_is_left_must_be_far_from_full() -> None:
    scene = Scene(workers=2)
    scene.take(scene.own[0], 6)
    assert set(scene.quiet(30)) == {NOTHING}  # 6 of 10 would be left, then 90 % are near
    scene.pool.release(scene.own[0])
    assert scene.quiet(1) == [Decision(drain="w1")]


def test_nothing_is_drained_while_a_run_waits() -> None:
    scene = Scene(workers=2)
    scene.quiet(20)
    assert scene.look(queued=1) == NOTHING
    assert scene.look() == Decision(drain="w0")


def test_workers_of_others_give_room_and_are_left_alone() -> None:
    scene = Scene(workers=2)
    scene.join("theirs", slots=100)
    scene.take(scene.own[0], 10)
    assert scene.look() == NOTHING
    assert scene.quiet(11)[-1] == Decision(drain="w1")


def test_a_start_that_fails_is_given_up_when_nobody_needs_it() -> None:
    scene = Scene(workers=1)
    scene.take(scene.own[0], 6)
    assert scene.look(starting=1, failing=1) == NOTHING
    scene.pool.release(scene.own[0])
    assert scene.look(starting=1, failing=1) == Decision(give_up_start=True)
    assert scene.look(starting=1) == NOTHING
    least = Scene(least=2, workers=1)
    assert least.look(starting=1, failing=1) == NOTHING


def test_a_draining_workers_slots_are_none() -> None:
    scene = Scene(workers=2)
    scene.take(scene.own[0], 9)
    assert scene.look() == NOTHING
    scene.pool.drain("w1")
    scene.own.pop()
    assert scene.look() == Decision(grow=1)


def test_a_light_steady_load_leaves_one_worker_after_another_to_rest() -> None:
    scene = Scene(workers=3)
    drained = []
    for _ in range(100):
        scene.now += 1.0
        worker = scene.pool.pick("e")
        assert worker is not None
        scene.take(worker, 1)
        scene.beat()
        if leaves := scene.look().drain:
            drained.append(leaves)
            scene.own = [own for own in scene.own if own.instance != leaves]
            scene.pool.remove(leaves, "l")
        scene.pool.release(worker)
        scene.beat()
    assert len(drained) == 2
    assert len(scene.own) == 1


def test_who_is_spared_stays_so_and_is_the_one_with_the_least() -> None:
    scene = Scene(workers=3)
    for worker, runs in zip(scene.own, (2, 1, 3), strict=True):
        scene.take(worker, runs)
    scene.look()
    assert scene.spared == "w1"
    scene.take(scene.own[1], 2)
    scene.look()
    assert scene.spared == "w1"
    picked = scene.pool.pick("e")
    assert picked is not None
    assert picked.instance == "w0"


@pytest.mark.parametrize("why", ["load", "queue", "least"])
def test_nobody_is_spared_where_all_are_needed(why: str) -> None:
    scene = Scene(workers=2, least=2 if why == "least" else 1)
    scene.look()
    assert scene.spared == ("" if why == "least" else "w0")
    if why == "load":
        scene.take(scene.own[1], 7)
    scene.look(queued=1 if why == "queue" else 0)
    assert scene.spared == ""


def test_a_spared_worker_gets_what_no_other_has_room_for() -> None:
    scene = Scene(workers=2, slots=1)
    scene.pool.spare("w0")
    for expected in ("w1", "w0"):
        picked = scene.pool.pick("e")
        assert picked is not None
        assert picked.instance == expected
        scene.take(picked, 1)


def test_a_worker_that_cannot_be_dialled_is_no_room() -> None:
    scene = Scene(workers=1)
    scene.take(scene.own[0], 9)
    far = scene.join("far", slots=100)
    assert scene.look().grow == 0
    far.unreachable_because = "no route to host"
    assert scene.look().grow == 1


def test_a_worker_without_room_for_arrays_is_no_room() -> None:
    scene = Scene(workers=2)
    scene.take(scene.own[0], 5)
    scene.take(scene.own[1], 8)
    assert scene.look() == NOTHING
    scene.pool.no_room("w0", "full")
    assert scene.look() == NOTHING
    assert scene.look(queued=1) == Decision(grow=1)  # 9 of the 10 that are left
    assert scene.look(queued=1, starting=1) == NOTHING


@pytest.mark.parametrize(
    ("stranded", "starting", "grow"), [(0, 0, 0), (1, 0, 1), (9, 0, 2), (9, 1, 1), (8, 1, 0), (99, 1, 2)]
)
def test_runs_that_nobody_has_room_for_are_room_enough_for_others_only(
    stranded: int, starting: int, grow: int
) -> None:
    scene = Scene(workers=1)
    scene.join("theirs", slots=1000)  # of another environment
    scene.pool.no_room("w0", "full")
    assert scene.look(queued=stranded, stranded=stranded, starting=starting) == Decision(grow=grow)


def test_one_that_was_started_for_want_of_room_stays_while_there_was_none_lately() -> None:
    scene = Scene(workers=2)

    def holding(seconds: float) -> list[Decision]:
        decisions = []
        for _ in range(int(seconds)):
            scene.now += 1.0
            scene.beat()
            scene.pool.heartbeat("w0", "l", scene.now, load=Load(held_arrays=1))
            decisions.append(scene.look())
        return decisions

    scene.pool.no_room("w0", "full")
    assert set(holding(50)) == {NOTHING}, "w1 has nothing to do, and is all the room there is"
    scene.pool.relent("w0")
    assert set(holding(IDLE - 1)) == {NOTHING}, "w0 may soon be full again"
    assert holding(1) == [Decision(drain="w1")]
    scene.pool.no_room("w0", "full")
    assert holding(1) == [NOTHING]


def test_one_without_room_that_has_nothing_is_drained_where_others_have_room_enough() -> None:
    scene = Scene(workers=2)
    scene.take(scene.own[1], 3)
    scene.pool.no_room("w0", "full")
    assert Decision(drain="w0") in scene.quiet(IDLE + 2)

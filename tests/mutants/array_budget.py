"""Bugs of the budget for training arrays: reservations, refusals, and what a broker makes of them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

RUN: Final = "env_worker/run.py"
ADMISSION: Final = "env_worker/admission.py"
BUDGET: Final = "env_worker/arrays/budget.py"
HOLDINGS: Final = "env_worker/arrays/holdings.py"
BUDGET_MACHINE: Final = "tests/property/test_array_budget_machine.py"
OUTLOOK: Final = "env_broker/outlook.py"
DISPATCH: Final = "env_broker/dispatch.py"
SCALE: Final = "env_broker/scale.py"
RELAY: Final = "env_broker/relay.py"
RESERVATION_TESTS: Final = "tests/unit/worker/test_runner_reservations.py"
HOOK_TESTS: Final = "tests/unit/worker/test_runner_array_hooks.py"
DISPATCH_TESTS: Final = "tests/unit/broker/test_dispatch.py"
QUEUE_TESTS: Final = "tests/integration/test_broker_queue.py"
SCALE_TESTS: Final = "tests/unit/broker/test_scale.py"
ROOM_TESTS: Final = "tests/unit/broker/test_elastic_room.py"
POOL_TESTS: Final = "tests/integration/test_array_budget.py"

ARRAY_BUDGET: Final = (
    Mutant(
        "what is left of memory and of the spill folder counts as room together",
        BUDGET,
        "        return sum(one % size for one in free)\n",
        "        return 0\n",
        ("tests/unit/worker/arrays/test_budget.py", BUDGET_MACHINE),
    ),
    Mutant(
        "what did not fit is forgotten",
        HOLDINGS,
        "                    self._budget.note_failed(sizes)\n",
        "                    pass\n",
        ("tests/unit/worker/arrays/test_store.py", BUDGET_MACHINE),
    ),
    Mutant(
        "room for arrays is never given back",
        RUN,
        "            self._reservation.close()\n",
        "            pass\n",
        (RESERVATION_TESTS,),
    ),
    Mutant(
        "room for arrays is given back while keep runs",
        RUN,
        "{State.QUEUED, State.RUNNING, State.KEEPING, State.KEEPING_ABANDONED}",
        "{State.QUEUED, State.RUNNING, State.KEEPING}",
        (f"{RESERVATION_TESTS}::test_a_run_that_ends_in_its_keep_holds_its_room_until_that_returns",),
    ),
    Mutant(
        "a run that is refused keeps its room",
        ADMISSION,
        "                    undo.callback(reservation.close)\n",
        "                    pass\n",
        (f"{RESERVATION_TESTS}::test_what_is_refused_for_another_reason_reserves_nothing",),
    ),
    Mutant(
        "a hook that another worker has is called",
        RUN,
        "            self._settle(Event.ENCODE_FAILED, hook_unusable(failure))\n            return False\n",
        "",
        (f"{HOOK_TESTS}::test_a_hook_of_another_worker_that_was_set_meanwhile_fails_the_run_without_a_keep",),
    ),
    Mutant(
        "a run waits for workers that are all full",
        OUTLOOK,
        "            return self._no_room(environment)\n",
        "            return None\n",
        (f"{DISPATCH_TESTS}::test_where_all_are_without_room_a_run_is_refused_and_so_is_what_waits",),
    ),
    Mutant(
        "a full worker is offered run after run",
        RELAY,
        "                    self._dispatcher.full(worker, cut(",
        "                    str(cut(",
        (
            f"{QUEUE_TESTS}::test_a_worker_without_room_for_arrays_is_asked_again_only_after_a_heartbeat_of_room",
        ),
    ),
    Mutant(
        "full workers use up a run's placements",
        RELAY,
        "                    placements -= 1\n",
        "",
        (f"{POOL_TESTS}::test_runs_that_a_full_worker_refuses_keep_their_place",),
    ),
    Mutant(
        "a full worker is asked again with every heartbeat",
        "env_broker/registry.py",
        "pool.no_room(instance, beat.says) if beat.full else pool.relent(instance)",
        "pool.relent(instance)",
        (
            f"{QUEUE_TESTS}::test_a_worker_without_room_for_arrays_is_asked_again_only_after_a_heartbeat_of_room",
        ),
    ),
    Mutant(
        "a run that was declined loses its place",
        DISPATCH,
        ", order=turn.order, returns=returns)",
        ", returns=returns)",
        (
            f"{DISPATCH_TESTS}::test_a_run_that_was_declined_keeps_its_place_although_the_queue_is_full_by_now",
        ),
    ),
    Mutant(
        "full workers are room enough",
        SCALE,
        "        roomy = [worker for worker in ready if not worker.full_because]\n",
        "        roomy = ready\n",
        (f"{SCALE_TESTS}::test_a_worker_without_room_for_arrays_is_no_room",),
    ),
    Mutant(
        "runs wait for a worker that nobody starts",
        SCALE,
        ", self._needed(stranded, coming))",
        ", 0)",
        (f"{SCALE_TESTS}::test_runs_that_nobody_has_room_for_are_room_enough_for_others_only", ROOM_TESTS),
    ),
    Mutant(
        "a pool shrinks as soon as there is room for arrays",
        SCALE,
        "        lasting = [worker for worker in ready if worker.instance not in self._full]\n",
        "        lasting = ready\n",
        (f"{SCALE_TESTS}::test_one_that_was_started_for_want_of_room_stays_while_there_was_none_lately",),
    ),
    Mutant(
        "runs wait for the growth of a pool that serves something else",
        "env_broker/elastic.py",
        '            and environment in ("", *self._served)\n',
        "",
        (f"{ROOM_TESTS}::test_a_run_of_what_local_workers_do_not_serve_waits_for_none_of_them",),
    ),
    Mutant(
        "that there is room again is said with the next heartbeat",
        "env_worker/registration.py",
        " and self._report.room == told:",
        ":",
        (f"{POOL_TESTS}::test_that_there_is_room_again_is_said_at_once_and_not_with_the_next_heartbeat",),
    ),
    Mutant(
        "who sends nothing keeps the threads of metrics",
        "env_worker/arrays/scrapes.py",
        "        self._end(MAX_SECONDS)\n",
        "        pass\n",
        ("tests/unit/worker/arrays/test_metrics.py",),
    ),
)

"""Bugs of the budget for training arrays: reservations, refusals, and what a broker makes of them."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

RUN: Final = "env_worker/run.py"
ADMISSION: Final = "env_worker/admission.py"
DISPATCH: Final = "env_broker/dispatch.py"
RELAY: Final = "env_broker/relay.py"
RESERVATION_TESTS: Final = "tests/unit/worker/test_runner_reservations.py"
HOOK_TESTS: Final = "tests/unit/worker/test_runner_array_hooks.py"
DISPATCH_TESTS: Final = "tests/unit/broker/test_dispatch.py"
QUEUE_TESTS: Final = "tests/integration/test_broker_queue.py"
POOL_TESTS: Final = "tests/integration/test_array_budget.py"

ARRAY_BUDGET: Final = (
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
        DISPATCH,
        "            return self._no_room(environment)\n",
        "            return None\n",
        (f"{DISPATCH_TESTS}::test_where_all_are_without_room_a_run_is_refused_and_so_is_what_waits",),
    ),
    Mutant(
        "a full worker is offered run after run",
        RELAY,
        "                    self._dispatcher.full(worker, cut(",
        "                    str(cut(",
        (f"{QUEUE_TESTS}::test_a_worker_without_room_for_arrays_is_asked_again_only_after_a_heartbeat",),
    ),
    Mutant(
        "full workers use up a run's placements",
        RELAY,
        "                    placements -= 1\n",
        "",
        (f"{POOL_TESTS}::test_a_busy_worker_that_has_room_is_waited_for_although_the_full_one_is_idle",),
    ),
)

"""Bugs of the broker: routes, cancels, the relay."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

ROUTES: Final = "env_broker/routes.py"
CANCEL: Final = "env_broker/cancel.py"
RELAY: Final = "env_broker/relay.py"
ROUTES_TESTS: Final = "tests/unit/broker/test_routes.py"
LOCAL: Final = "env_broker/local_worker.py"
OWN_TESTS: Final = "tests/unit/broker/test_own_workers.py"
PLACE_TESTS: Final = "tests/unit/broker/test_supervisor.py"
CANCEL_TESTS: Final = "tests/integration/test_broker_cancel.py"

BROKER: Final = (
    Mutant(
        "a cancelled run is placed elsewhere",
        ROUTES,
        "        if route.cancelled:\n            self._bury(route, CancelOutcome.ABORTED, now)\n",
        "        if False:\n            self._bury(route, CancelOutcome.ABORTED, now)\n",
        (
            f"{ROUTES_TESTS}::test_a_run_that_was_cancelled_at_the_worker_that_refused_it_is_not_placed_elsewhere",
        ),
    ),
    Mutant(
        "a replied route is forgotten at once",
        "env_broker/route_memory.py",
        "        route.until = now + window + RETENTION_MARGIN_SECONDS",
        "        route.until = now",
        (f"{ROUTES_TESTS}::test_a_replied_route_is_retained_for_the_window_and_ten_seconds",),
    ),
    Mutant(
        "a reply that was taken back is passed on",
        ROUTES,
        "        if route.answer is not None and route.answer.outcome is not CancelOutcome.TOO_LATE:",
        "        if False:",
        (f"{ROUTES_TESTS}::test_a_reply_that_was_taken_back_on_its_way_is_not_passed_on",),
    ),
    Mutant(
        "the last answer of a worker counts",
        ROUTES,
        "        if decided is not None and decided.outcome not in (None, CancelOutcome.REMEMBERED):",
        "        if False:",
        (
            f"{ROUTES_TESTS}::test_the_first_answer_of_a_worker_is_given_to_every_further_cancel",
            "tests/unit/broker/test_confirm_routes.py",
        ),
    ),
    Mutant(
        "a broken hop forgets the run",
        ROUTES,
        ' "cut")\n        self._retain(route, now, window)\n',
        ' "cut")\n        self._bury(route, CancelOutcome.ABORTED, now)\n',
        (f"{ROUTES_TESTS}::test_a_hop_that_broke_leaves_the_run_where_cancels_reach_it",),
    ),
    Mutant(
        "the broker forgets the remembered cancel",
        "env_broker/remembered.py",
        "        return self._ends.pop(key, None) is not None",
        "        return False",
        (f"{ROUTES_TESTS}::test_a_cancel_that_overtook_its_run_applies_to_it",),
    ),
    Mutant(
        "a route's tombstone is kept forever",
        "env_broker/tombstones.py",
        "        while self._ends and self._ends[0] <= now:",
        "        while False:",
        (f"{ROUTES_TESTS}::test_a_known_id_is_refused_and_its_run_untouched",),
    ),
    Mutant(
        "a lost worker's replies count as aborted",
        ROUTES,
        "            return answer_of(CancelOutcome.TOO_LATE, worker_lost=True)",
        "            return answer_of(CancelOutcome.ABORTED, worker_lost=True)",
        (f"{ROUTES_TESTS}::test_a_lost_worker_before_and_after_the_reply",),
    ),
    Mutant(
        "a worker that comes back keeps what was given up",
        ROUTES,
        "            return decision.outcome is not CancelOutcome.TOO_LATE\n",
        "            return False\n",
        (f"{ROUTES_TESTS}::test_a_worker_that_comes_back_hears_which_runs_were_given_up",),
    ),
    Mutant(
        "the relay does not cancel what broke",
        RELAY,
        '                self._canceller.tell(request_id, "its caller or its stream is gone")\n',
        "",
        (f"{CANCEL_TESTS}::test_a_reply_that_passed_without_its_status_is_taken_back",),
    ),
    Mutant(
        "the broker makes up an answer for a silent worker",
        "env_broker/worker_cancel.py",
        'raise silent(request_id, link.name, f"did not answer in {SILENCE_SECONDS:g} s") from None\n',
        "return CancelOutcome.ABORTED\n",
        (f"{CANCEL_TESTS}::test_a_worker_that_does_not_answer_a_cancel_is_said_to_be_silent",),
    ),
    Mutant(
        "a cancel that overtook its run is said to be remembered",
        CANCEL,
        "CancelOutcome.ABORTED if overtaken and outcome is CancelOutcome.REMEMBERED else outcome",
        "outcome",
        (f"{CANCEL_TESTS}::test_a_cancel_that_overtakes_its_run_at_the_worker_ends_it",),
    ),
    Mutant(
        "a local worker that declines is not replaced until its heartbeat",
        RELAY,
        "                    self._drains(worker.instance)",
        "                    self._pool.drain(worker.instance)",
        (f"{OWN_TESTS}::test_a_run_that_a_draining_worker_declines_waits_for_the_one_that_replaces_it",),
    ),
    Mutant(
        "whoever names a slot is its worker",
        LOCAL,
        "claim != self._claim or",
        'claim.partition(":")[0] != str(self.slot) or',
        (f"{PLACE_TESTS}::test_a_place_is_filled_by_its_own_process_and_nobody_else",),
    ),
    Mutant(
        "a worker that an environment starts takes the place of its own",
        LOCAL,
        'or self.instance not in ("", instance):',
        "or False:",
        (f"{PLACE_TESTS}::test_a_place_is_filled_by_its_own_process_and_nobody_else",),
    ),
    Mutant(
        "a registration that fails leaves its worker in the pool",
        "env_broker/registry.py",
        "            if self._registrations.get(hello.instance) is registration:",
        "            if cause != _BROKE:",
        (f"{OWN_TESTS}::test_a_registration_that_fails_leaves_no_worker_behind",),
    ),
)

"""Bugs of the worker: the ledger, the run table, the runner and its port."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

LEDGER: Final = "env_worker/domain/ledger.py"
RUNS: Final = "env_worker/domain/runs.py"
RUNNER: Final = "env_worker/runner.py"
RUN: Final = "env_worker/run.py"
WINDOW_BOUND: Final = "env_worker/window_bound.py"
LEDGER_TESTS: Final = "tests/unit/worker/ledger/test_ledger.py"
TABLE_TESTS: Final = "tests/unit/worker/ledger/test_run_table.py"
ENDINGS_TESTS: Final = "tests/unit/worker/test_runner_endings.py"
STATES_TESTS: Final = "tests/unit/worker/test_runner_states.py"
HOOKS_TESTS: Final = "tests/unit/worker/test_runner_hooks.py"
MEMORY_TESTS: Final = "tests/unit/worker/test_runner_memory.py"
NO_CYCLE: Final = f"{MEMORY_TESTS}::test_a_run_that_is_over_leaves_only_its_tombstone_and_no_cycle"

WORKER: Final = (
    Mutant(
        "drop a transition: cancel while keep runs",
        LEDGER,
        "        **_to(State.KEEPING_ABANDONED, _ENDINGS),\n        Event.CONFIRM: State.KEEPING,",
        "        **_to(State.KEEPING_ABANDONED, _ENDINGS[1:]),\n        Event.CONFIRM: State.KEEPING,",
        (f"{LEDGER_TESTS}::test_ended_while_keep_runs_then_keep_runs_to_its_end_then_discard_once",),
    ),
    Mutant(
        "discard while keep runs",
        LEDGER,
        "        **_to(State.KEEPING_ABANDONED, _ENDINGS),\n        Event.CONFIRM: State.KEEPING,",
        "        **_to(State.DISCARD_DUE, _ENDINGS),\n        Event.CONFIRM: State.KEEPING,",
        (f"{LEDGER_TESTS}::test_no_way_leads_from_keeping_to_a_discard_but_through_the_end_of_keep",),
    ),
    Mutant(
        "deliver what keep failed to take",
        LEDGER,
        "Event.KEEP_RAISED: State.DISCARD_DUE,",
        "Event.KEEP_RAISED: State.KEPT,",
        (f"{LEDGER_TESTS}::test_keep_raises_then_discard_once_and_the_cause_is_the_hook",),
    ),
    Mutant(
        "discard twice",
        LEDGER,
        "        **_to(State.DISCARDING, (*_LATE, Event.REPLIED, Event.DISCARD_BEGAN)),\n",
        "        **_to(State.DISCARDING, (Event.REPLIED, Event.DISCARD_BEGAN)),\n"
        "        **_to(State.DISCARD_DUE, _LATE),\n",
        (LEDGER_TESTS,),
    ),
    Mutant(
        "try a failed discard again",
        LEDGER,
        "        Event.DISCARD_RAISED: State.DISCARD_FAILED,",
        "        Event.DISCARD_RAISED: State.DISCARD_DUE,",
        (f"{LEDGER_TESTS}::test_discard_raises_and_is_not_tried_again",),
    ),
    Mutant(
        "discard on expiry",
        LEDGER,
        "        Event.EXPIRE: State.EXPIRED,\n    }\n\n\n#",
        "        Event.EXPIRE: taken_back,\n    }\n\n\n#",
        (f"{LEDGER_TESTS}::test_confirmed_or_expired_is_delivered_for_good",),
    ),
    Mutant(
        "a lost caller takes a reply back",
        LEDGER,
        "_TAKE_BACK: Final = (Event.CANCEL, Event.SESSION_LOST)",
        "_TAKE_BACK: Final = (Event.CANCEL, Event.SESSION_LOST, Event.CALLER_LOST)",
        (f"{LEDGER_TESTS}::test_after_the_reply_nothing_but_a_cancel_or_its_session_takes_it_back",),
    ),
    Mutant(
        "a lost session leaves its replies",
        LEDGER,
        "_TAKE_BACK: Final = (Event.CANCEL, Event.SESSION_LOST)",
        "_TAKE_BACK: Final = (Event.CANCEL,)",
        (f"{LEDGER_TESTS}::test_taken_back_within_the_window",),
    ),
    Mutant(
        "a confirmed run can be cancelled",
        LEDGER,
        "    State.CONFIRMED: _to(State.CONFIRMED, _LATE),",
        "    State.CONFIRMED: {**_to(State.CONFIRMED, _LATE), Event.CANCEL: State.DISCARD_DUE},",
        (f"{LEDGER_TESTS}::test_a_cancel_after_the_settlement_changes_nothing",),
    ),
    Mutant(
        "a late cancel is answered ABORTED",
        LEDGER,
        "        return CancelOutcome.DISCARDED if self.replied else CancelOutcome.ABORTED",
        "        return CancelOutcome.ABORTED",
        (f"{LEDGER_TESTS}::test_taken_back_within_the_window",),
    ),
    Mutant(
        "wrong outcome for a repeated cancel",
        LEDGER,
        "        if self.cause is None and following in _SETTLED:",
        "        if following in _SETTLED:",
        (f"{TABLE_TESTS}::test_cancel_within_the_window_and_again",),
    ),
    Mutant(
        "forget the remembered cancel",
        RUNS,
        "        if self._remembered.pop(key, None) is not None:\n",
        "        if self._remembered.pop(key, None) is None and False:\n",
        (f"{TABLE_TESTS}::test_a_cancel_that_overtook_its_run_applies_to_it",),
    ),
    Mutant(
        "a remembered cancel is kept forever",
        RUNS,
        "        while self._remembered and next(iter(self._remembered.values())) <= now:",
        "        while False:",
        (
            f"{TABLE_TESTS}"
            "::test_a_remembered_cancel_is_forgotten_after_the_window_that_its_last_repetition_began",
        ),
    ),
    Mutant(
        "forget the window",
        RUNS,
        "            self._windows[key] = entry\n",
        "            pass\n",
        (f"{TABLE_TESTS}::test_windows_expire_in_order",),
    ),
    Mutant(
        "the window ends before it is over",
        RUNS,
        "        while (ends := self.next_expiry) is not None and ends <= now:",
        "        while (ends := self.next_expiry) is not None and ends - 1.0 <= now:",
        (f"{TABLE_TESTS}::test_windows_expire_in_order",),
    ),
    Mutant(
        "a confirmed run keeps its window",
        RUNS,
        "            self._windows.pop(key, None)\n",
        "",
        (f"{TABLE_TESTS}::test_confirm_closes_the_window_at_once",),
    ),
    Mutant(
        "confirm what was taken back",
        RUNS,
        "ConfirmOutcome.CONFIRMED if outcome is CancelOutcome.TOO_LATE else ConfirmOutcome.DISCARDED",
        "ConfirmOutcome.CONFIRMED",
        (TABLE_TESTS,),
    ),
    Mutant(
        "a lost session takes all runs",
        RUNS,
        "            if session_id in (None, entry.session_id) and self.settle(entry, event, now)",
        "            if self.settle(entry, event, now)",
        (f"{TABLE_TESTS}::test_a_lost_session_takes_its_runs_and_no_other",),
    ),
    Mutant(
        "a tombstone is kept forever",
        "env_worker/domain/tombstones.py",
        "        while self._ends and self._ends[0] <= now:",
        "        while False:",
        (f"{TABLE_TESTS}::test_a_known_id_is_refused_while_it_lives_and_for_two_windows_after",),
    ),
    Mutant(
        "an id is free again when its run is over",
        RUNS,
        "        if key in self._entries or self._tombstones.get(key) is not None:",
        "        if key in self._entries:",
        (f"{TABLE_TESTS}::test_a_known_id_is_refused_while_it_lives_and_for_two_windows_after",),
    ),
    Mutant(
        "the runner calls discard without claiming it",
        RUNNER,
        "        if entry.discard_due and self.table.settle(entry, Event.DISCARD_BEGAN, self._clock()):",
        "        if entry.discard_due:",
        (HOOKS_TESTS,),
    ),
    Mutant(
        "a cancel does not begin the discard",
        RUNNER,
        "        if (run := self._runs.get(request_id)) is not None:\n            self._follow(run)\n",
        "",
        (f"{ENDINGS_TESTS}::test_after_the_reply_only_a_cancel_takes_it_back",),
    ),
    Mutant(
        "a brokered window closes unheard",
        WINDOW_BOUND,
        "        if self._brokered:\n            return max(",
        "        if False:\n            return max(",
        (f"{HOOKS_TESTS}::test_a_brokered_window_waits_for_an_acknowledged_heartbeat_at_most_ten_windows",),
    ),
    Mutant(
        "a heartbeat right behind a registration closes windows",
        WINDOW_BOUND,
        "        if sent_at >= self._telling_from:",
        "        if True:",
        (
            f"{HOOKS_TESTS}::test_after_a_registration_heartbeats_close_no_window_until_cancels_had_their_time",
        ),
    ),
    Mutant(
        "SIGTERM leaves live runs alone",
        RUNNER,
        "if self.settle(run, Event.STOP)]",
        "if False]",
        (f"{STATES_TESTS}::test_from_keep_to_the_reply_it_is_ended_and_discarded_once",),
    ),
    Mutant(
        "the hook that is set now discards, not the one that kept",
        RUNNER,
        "self._threads.discard(run.hook, run.episode)",
        "self._threads.discard(self._services.hook() or run.hook, run.episode)",
        (f"{HOOKS_TESTS}::test_the_hook_that_kept_is_the_one_that_discards",),
    ),
    Mutant(
        "keep is called for a run that was cancelled",
        RUN,
        "            if not self._settle(Event.FINISHED):\n                return False\n",
        "            self._settle(Event.FINISHED)\n",
        (f"{STATES_TESTS}::test_before_keep_it_is_ended_and_no_hook_hears_of_it",),
    ),
    Mutant(
        "the end of the call settles nothing",
        "env_worker/servicer.py",
        "            self._runner.caller_gone(carried)\n",
        "            pass\n",
        ("tests/integration/test_worker_run.py::test_a_caller_that_hangs_up_leaves_nothing",),
    ),
    Mutant(
        "status OK without a settlement",
        "env_worker/port.py",
        "        if self._commit is not None and self._commit():\n            self.ended = True\n",
        "        if self._commit is not None:\n            self.ended = True\n",
        ("tests/unit/worker/test_port.py",),
    ),
    Mutant(
        "worker: a reply leaves a cycle",
        "env_worker/port.py",
        "            self._commit = None  # it leads to the run, which leads here\n",
        "            pass\n",
        (NO_CYCLE,),
    ),
    Mutant(
        "worker: an environment that ended leaves a cycle",
        RUN,
        "        outcome, self._environment = self._environment, None",
        "        outcome = self._environment",
        (NO_CYCLE,),
    ),
    Mutant(
        "worker: what was submitted is forgotten at the end",
        "env_worker/environment_loop.py",
        "            self._empty_inbox()\n            for task",
        "            for task",
        ("tests/unit/worker/test_environment_loop.py",),
    ),
    Mutant(
        "worker: a wake-up does not wait for the rest of its turn",
        "env_worker/wake_ups.py",
        "        for _ in range(self._ripe):",
        "        for _ in range(len(self._waiting)):",
        ("tests/unit/worker/test_wake_ups.py::test_a_wake_up_leaves_the_changes_of_a_turn_their_time",),
    ),
)

"""Bugs of the worker's sessions and confirmations."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

TABLE: Final = "env_worker/domain/sessions.py"
SESSIONS: Final = "env_worker/sessions.py"
RUNNER: Final = "env_worker/runner.py"
TABLE_TESTS: Final = "tests/unit/worker/ledger/test_sessions.py"
SESSIONS_TESTS: Final = "tests/integration/test_worker_sessions.py"
STALL_TESTS: Final = "tests/unit/worker/test_stall.py"

WORKER_SESSIONS: Final = (
    Mutant(
        "worker: the end of an old epoch loses the session",
        TABLE,
        "        if self._epochs.get(session_id) != epoch or session_id in self._away:",
        "        if session_id not in self._epochs or session_id in self._away:",
        (f"{TABLE_TESTS}::test_the_end_of_an_older_epoch_means_nothing",),
    ),
    Mutant(
        "worker: the grace is ignored",
        TABLE,
        "            return False\n        self._away[session_id] = now + self.grace_seconds",
        "            return False\n        self._away[session_id] = now",
        (f"{TABLE_TESTS}::test_a_session_that_does_not_come_back_is_lost_once",),
    ),
    Mutant(
        "worker: coming back does not end the grace",
        TABLE,
        "        self._away.pop(session_id, None)\n        self._epochs[session_id] = epoch",
        "        self._epochs[session_id] = epoch",
        (f"{TABLE_TESTS}::test_coming_back_within_the_grace_goes_on",),
    ),
    Mutant(
        "worker: an equal epoch takes the session over",
        TABLE,
        "        if (latest := self._epochs.get(session_id, known)) >= epoch:",
        "        if (latest := self._epochs.get(session_id, known)) > epoch:",
        (f"{TABLE_TESTS}::test_a_lower_or_equal_epoch_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "worker: a session that is over leaves no epoch",
        TABLE,
        "self._over[session_id] = _Over(self._epochs.pop(session_id), now + self._remember_seconds, lost)",
        "self._epochs.pop(session_id)",
        (f"{TABLE_TESTS}::test_what_is_over_is_not_taken_up_by_an_open_that_was_long_under_way",),
    ),
    Mutant(
        "worker: a run takes up a session that said goodbye",
        TABLE,
        "is None or not over.lost:",
        "is None:",
        (f"{TABLE_TESTS}::test_a_run_takes_up_no_session_that_said_goodbye_or_is_unknown_or_forgotten",),
    ),
    Mutant(
        "worker: nobody hears that a run names a lost session",
        "env_worker/servicer.py",
        "            self._sessions.named(spec.session_id)\n",
        "",
        (f"{SESSIONS_TESTS}::test_a_run_that_comes_after_its_session_was_lost_is_lost_with_it",),
    ),
    Mutant(
        "worker: a stall loses who came back",
        "env_worker/stall.py",
        "        return now < self._until",
        "        return False",
        (STALL_TESTS,),
    ),
    Mutant(
        "worker: a stream that opens ends the hearing of the others",
        SESSIONS,
        "self._stall.next_look(due)",
        "due",
        (STALL_TESTS,),
    ),
    Mutant(
        "worker: goodbye cancels",
        SESSIONS,
        "        end = self.table.goodbye if stream.goodbye else self.table.stream_ended",
        "        end = self.table.stream_ended",
        (f"{SESSIONS_TESTS}::test_after_a_goodbye_its_runs_are_left_to_themselves",),
    ),
    Mutant(
        "worker: confirm without settling",
        SESSIONS,
        "outcome=ANSWERS[self._runner.confirm(request_id)])",
        "outcome=pb.CONFIRM_OUTCOME_CONFIRMED)",
        (f"{SESSIONS_TESTS}::test_many_in_one_frame_each_get_the_truth",),
    ),
    Mutant(
        "worker: an older stream stays when a newer one has come",
        SESSIONS,
        "            older.end(_superseded(older, stream))",
        "            pass",
        (f"{SESSIONS_TESTS}::test_the_end_of_an_older_epoch_means_nothing",),
    ),
    Mutant(
        "worker: a confirmed run is held on to",
        RUNNER,
        "            self._runs.pop(request_id, None)\n            self._changed",
        "            self._changed",
        (SESSIONS_TESTS, "tests/unit/worker/test_runner_memory.py"),
    ),
    Mutant(
        "worker: a lost session ends all runs",
        RUNNER,
        "        runs = [run for run in self._runs.values() if run.entry.session_id == session_id]",
        "        runs = list(self._runs.values())",
        (f"{SESSIONS_TESTS}::test_a_lost_session_takes_its_live_runs_and_its_replies_and_no_others",),
    ),
    Mutant(
        "worker: a lost session ends live runs only",
        RUNNER,
        "        return sum(self.settle(run, Event.SESSION_LOST) for run in runs)",
        "        return sum(self.settle(run, Event.SESSION_LOST) for run in runs if not run.entry.replied)",
        (f"{SESSIONS_TESTS}::test_a_lost_session_takes_its_live_runs_and_its_replies_and_no_others",),
    ),
)

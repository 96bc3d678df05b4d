"""Bugs of the worker's sessions and confirmations."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.worker_messages import WORKER_MESSAGES

TABLE: Final = "env_worker/domain/sessions.py"
SESSIONS: Final = "env_worker/sessions.py"
STREAM: Final = "env_worker/session_stream.py"
RUNS: Final = "env_worker/session_runs.py"
RUN: Final = "env_worker/session_run.py"
OUTBOX: Final = "env_worker/session_outbox.py"
RUNNER: Final = "env_worker/runner.py"
TABLE_TESTS: Final = "tests/unit/worker/ledger/test_sessions.py"
SESSIONS_TESTS: Final = "tests/integration/test_worker_sessions.py"
RUNS_TESTS: Final = "tests/integration/test_worker_session_runs.py"
ENDS_TESTS: Final = "tests/integration/test_worker_session_ends.py"
BOUNDS_TESTS: Final = "tests/integration/test_worker_session_bounds.py"
REFUSALS_TESTS: Final = "tests/integration/test_worker_session_refusals.py"
OUTBOX_TESTS: Final = "tests/unit/worker/test_session_outbox.py"
OUTBOX_MACHINE: Final = "tests/property/test_session_outbox_machine.py"
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
        "env_worker/entrance.py",
        "        self._named(spec.session_id)\n",
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
        STREAM,
        "outcome=ANSWERS[self._confirm(request_id)])",
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
    ),  # Runs in a stream.
    Mutant(
        "worker: a run in a stream is committed before it was written",
        RUN,
        "        self._credit -= size\n",
        "        self._credit -= size\n        self.port.written()\n",
        (
            f"{OUTBOX_TESTS}::test_a_reply_is_settled_when_it_was_written_and_its_end_comes_in_a_later_message",
        ),
    ),
    Mutant(
        "worker: a run in a stream is sent without credit",
        RUN,
        "self._credit > 0 and ",
        "",
        (f"{BOUNDS_TESTS}::test_a_run_without_credit_holds_up_no_other",),
    ),
    Mutant(
        "worker: what a run sends costs no credit",
        RUN,
        "        self._credit -= size\n",
        "",
        (OUTBOX_TESTS, OUTBOX_MACHINE),
    ),
    Mutant(
        "worker: a message of a run in a stream is sent twice",
        RUN,
        "            self._queued = True\n",
        "",
        (OUTBOX_TESTS, OUTBOX_MACHINE),
    ),
    Mutant(
        "worker: a run that has ended holds on to its stream",
        RUN,
        "            port.on_news = _unheard",
        "            pass",
        (
            f"{OUTBOX_TESTS}::test_a_reply_is_settled_when_it_was_written_and_its_end_comes_in_a_later_message",
        ),
    ),
    Mutant(
        "worker: runs outlive their stream",
        SESSIONS,
        "        stream.give_up()\n",
        "",
        (f"{ENDS_TESTS}::test_however_a_stream_ends_its_runs_end_with_it_and_no_others",),
    ),
    Mutant(
        "worker: a stopping worker does not say how runs ended",
        SESSIONS,
        "_draining(), farewell=True)",
        "_draining())",
        (ENDS_TESTS,),
    ),
    Mutant(
        "worker: leaving a run in a stream does nothing",
        RUNS,
        "            self._entrance.caller_gone(run.run)",
        "            pass",
        (f"{ENDS_TESTS}::test_left_waiting_running_and_over_each_has_one_end_and_nothing_behind_it",),
    ),
    Mutant(
        "worker: a run that was left is admitted when it was read",
        RUNS,
        "            run.end(_left(run.number))",
        "            pass",
        (f"{BOUNDS_TESTS}::test_while_a_large_request_is_read_the_stream_is_heard",),
    ),
    Mutant(
        "worker: a large request in a stream holds up the loop",
        RUNS,
        "await asyncio.to_thread(self._entrance.read, request, deadline)",
        "self._entrance.read(request, deadline)",
        (f"{BOUNDS_TESTS}::test_while_a_large_request_is_read_the_stream_is_heard",),
    ),
    Mutant(
        "worker: large requests in a stream are read without bound",
        RUNS,
        "            await self._reading.acquire()",
        "            pass",
        (f"{BOUNDS_TESTS}::test_large_requests_are_read_a_few_at_a_time",),
    ),
    Mutant(
        "worker: a run in a stream has no deadline",
        RUNS,
        "frame.timeout_millis / 1000 if",
        "None if",
        (f"{ENDS_TESTS}::test_a_deadline_counts_while_the_run_waits_too",),
    ),
    Mutant(
        "worker: a run_number comes again",
        RUNS,
        "        if number <= self._last:",
        "        if number < self._last:",
        (f"{REFUSALS_TESTS}::test_a_malformed_frame_ends_its_stream_and_the_runs_of_that_and_nothing_else",),
    ),
    Mutant(
        "worker: ends that nobody reads grow without bound",
        STREAM,
        "            while self._outbox.full:",
        "            while False:",
        (f"{BOUNDS_TESTS}::test_refusals_that_are_not_read_hold_up_their_own_stream_only",),
    ),
    Mutant(
        "worker: a message of many runs has no bound",
        OUTBOX,
        "            if count and size + len(data) > TARGET_BYTES:",
        "            if False:",
        (f"{OUTBOX_TESTS}::test_messages_are_bounded_in_bytes_and_frames_and_one_larger_frame_goes_alone",),
    ),
    Mutant(
        "worker: frames are joined for who may not know `more`",
        OUTBOX,
        "        self.joins = False\n",
        "        self.joins = True\n",
        (f"{RUNS_TESTS}::test_answers_go_each_by_itself_to_who_opens_no_runs[False]",),
    ),
    Mutant(
        "worker: frames are never joined",
        STREAM,
        "                    self._outbox.joins = True  # who opens runs knows `more`\n",
        "",
        (f"{RUNS_TESTS}::test_answers_go_each_by_itself_to_who_opens_no_runs[True]",),
    ),
    Mutant(
        "worker: frames behind a goodbye count",
        STREAM,
        "            if self.goodbye:\n                self.goodbye = False\n",
        "            if False:\n                self.goodbye = False\n",
        (REFUSALS_TESTS,),
    ),
    Mutant(
        "worker: a stream ends as drained although its runs' ends were not told",
        STREAM,
        "            if not writing.done():\n",
        "            if False:\n",
        (f"{ENDS_TESTS}::test_what_is_due_when_a_worker_stops_is_for_who_reads_it_and_holds_up_no_stop",),
    ),
    *WORKER_MESSAGES,
)

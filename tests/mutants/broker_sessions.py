"""Bugs of the broker's sessions and confirmations."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

TABLE: Final = "env_broker/sessions.py"
SESSIONS: Final = "env_broker/client_session.py"
ROUTES: Final = "env_broker/routes.py"
TABLE_TESTS: Final = "tests/unit/broker/test_sessions.py"
ROUTES_TESTS: Final = "tests/unit/broker/test_confirm_routes.py"
CONFIRMS_TESTS: Final = "tests/integration/test_broker_confirms.py"
SESSIONS_TESTS: Final = "tests/integration/test_broker_sessions.py"
RUNS: Final = "env_broker/client_runs.py"
OUTBOX: Final = "env_broker/session_outbox.py"
RUNS_TESTS: Final = "tests/integration/test_broker_session_runs.py"
BOUNDS_TESTS: Final = "tests/integration/test_broker_session_bounds.py"
CLIENT_RUNS_TESTS: Final = "tests/unit/broker/test_client_runs.py"
OUTBOX_TESTS: Final = "tests/unit/broker/test_session_outbox.py"
BOUNDS_OF_MESSAGES: Final = "tests/unit/broker/test_session_bounds.py"

BROKER_SESSIONS: Final = (
    Mutant(
        "broker: the end of an old epoch loses the session",
        TABLE,
        "            return False\n        del self._open[session_id]\n        self._away[session_id] =",
        "            self._open.setdefault(session_id, epoch)\n        del self._open[session_id]\n"
        "        self._away[session_id] =",
        (f"{TABLE_TESTS}::test_the_end_of_an_older_stream_means_nothing",),
    ),
    Mutant(
        "broker: the grace is ignored",
        TABLE,
        "_Away(epoch, now + self.grace)",
        "_Away(epoch, now)",
        (f"{TABLE_TESTS}::test_a_session_that_does_not_come_back_is_lost_once_at_the_end_of_its_grace",),
    ),
    Mutant(
        "broker: coming back does not end the grace",
        TABLE,
        "        self._away.pop(session_id, None)\n        self._over.pop(session_id, None)",
        "        self._over.pop(session_id, None)",
        (f"{TABLE_TESTS}::test_a_session_that_comes_back_in_its_grace_goes_on",),
    ),
    Mutant(
        "broker: an equal epoch takes the session over",
        TABLE,
        "        if (highest := self._highest(session_id)) >= epoch:",
        "        if (highest := self._highest(session_id)) > epoch:",
        (f"{TABLE_TESTS}::test_only_a_higher_epoch_opens_a_known_session",),
    ),
    Mutant(
        "broker: goodbye cancels",
        "env_broker/client_reader.py",
        "            self._table.goodbye(self._stream.session_id, self._stream.epoch, self._clock.now())\n",
        "",
        (f"{SESSIONS_TESTS}::test_after_a_goodbye_runs_are_left_to_themselves",),
    ),
    Mutant(
        "broker: an older stream stays when a newer one has come",
        SESSIONS,
        "            older.end(\n",
        "            str(\n",
        (f"{SESSIONS_TESTS}::test_an_older_stream_is_ended_and_its_end_means_nothing",),
    ),
    Mutant(
        "broker: the runs of a lost session are left",
        "env_broker/cancel.py",
        "            self._errands.start(self._cancel_lost(runs), name, always=True)\n",
        "            pass\n",
        (f"{SESSIONS_TESTS}::test_a_lost_session_has_its_runs_cancelled_and_no_others",),
    ),
    Mutant(
        "broker: a lost session takes all runs",
        ROUTES,
        " if r.answer is None and r.session_id in session_ids]",
        " if r.answer is None]",
        (f"{ROUTES_TESTS}::test_a_lost_session_leaves_its_live_runs_and_its_unconfirmed_replies",),
    ),
    Mutant(
        "broker: a lost session's runs at a lost worker are forgotten",
        ROUTES,
        "            route.cancelled = True\n        return [route.request_id",
        "            pass\n        return [route.request_id",
        (
            f"{ROUTES_TESTS}"
            "::test_what_a_lost_worker_replied_to_a_lost_session_is_cancelled_when_the_worker_is_back",
        ),
    ),
    Mutant(
        "broker: confirm without asking the worker",
        ROUTES,
        "        return ConfirmOutcome.WORKER_LOST if route.worker_lost else None",
        "        return ConfirmOutcome.WORKER_LOST if route.worker_lost else ConfirmOutcome.CONFIRMED",
        (f"{CONFIRMS_TESTS}::test_a_confirmation_goes_to_the_worker_that_replied",),
    ),
    Mutant(
        "broker: confirm what has not replied",
        ROUTES,
        "            return ConfirmOutcome.UNKNOWN\n",
        "            return ConfirmOutcome.CONFIRMED\n",
        (f"{ROUTES_TESTS}::test_what_has_not_replied_is_unknown",),
    ),
    Mutant(
        "broker: confirm for a lost worker",
        "env_broker/route.py",
        "    return ConfirmOutcome.WORKER_LOST if decision.worker_lost else ConfirmOutcome.CONFIRMED",
        "    return ConfirmOutcome.CONFIRMED",
        (f"{ROUTES_TESTS}::test_of_a_lost_worker_nothing_is_made_up",),
    ),
    Mutant(
        "broker: a cancel after a confirmation asks the worker again",
        ROUTES,
        "            self._bury(route, CancelOutcome.TOO_LATE, now)\n        elif",
        "            pass\n        elif",
        (f"{ROUTES_TESTS}::test_the_workers_answer_decides_and_the_route_becomes_a_tombstone",),
    ),
    Mutant(
        "broker: what was discarded counts as delivered",
        ROUTES,
        "            self._bury(route, CancelOutcome.DISCARDED, now)",
        "            self._bury(route, CancelOutcome.TOO_LATE, now)",
        (f"{ROUTES_TESTS}::test_the_workers_answer_decides_and_the_route_becomes_a_tombstone",),
    ),
    Mutant(
        "broker: a broken stream to a worker asks nothing again",
        "env_broker/worker_session.py",
        "                self._unsent = dict(self._waiting)\n",
        "",
        (f"{CONFIRMS_TESTS}::test_a_broken_stream_to_the_worker_is_opened_again_and_asked_again",),
    ),
    Mutant(
        "broker: a worker's answers in `more` are not heard",
        "env_broker/worker_session.py",
        "            for frame in (message, *message.more):\n",
        "            for frame in (message,):\n",
        (
            f"{CONFIRMS_TESTS}"
            "::test_answers_are_heard_in_all_frames_of_a_workers_message_and_passed_on_without_more",
        ),
    ),
    Mutant(
        "broker: answers go in `more`",
        OUTBOX,
        "            self._answers.append(answer)\n            self._news()\n",
        "            self.put(pb.SessionResponse(confirm_answers=pb.ConfirmAnswers(answers=[answer])))\n",
        (
            "tests/unit/broker/test_client_stream.py"
            "::test_answers_go_in_frames_and_a_goodbye_waits_for_the_last",
        ),
    ),
    Mutant(
        "broker: one of two who confirm is answered",
        "env_broker/confirm.py",
        "                asked.listeners.append(listener)\n",
        "                pass\n",
        (f"{CONFIRMS_TESTS}::test_two_sessions_that_confirm_the_same_run_are_both_answered",),
    ),
    Mutant(
        "broker: a run in a session needs no credit",
        OUTBOX,
        "        if self._credit > 0:\n",
        "        if self._credit >= 0:\n",
        (f"{OUTBOX_TESTS}::test_without_credit_nothing_of_the_run_leaves_and_all_of_the_others",),
    ),
    Mutant(
        "broker: what a run sends is not counted against its credit",
        OUTBOX,
        "        self._credit -= len(data)\n",
        "",
        (f"{BOUNDS_TESTS}::test_a_reader_that_is_slow_costs_its_credit_and_one_message",),
    ),
    Mutant(
        "broker: the end leaves with the reply",
        OUTBOX,
        "        self.close()\n        self._outbox.gone(self)\n",
        "        self._outbox.gone(self)\n",
        (f"{OUTBOX_TESTS}::test_an_end_never_leaves_with_the_message_before_it",),
    ),
    Mutant(
        "broker: a reply counts before it was written",
        "env_broker/client_hop.py",
        "            await self._written\n",
        "            await asyncio.sleep(0)\n",
        (f"{BOUNDS_TESTS}::test_a_reply_counts_for_the_worker_only_when_its_client_was_written_to",),
    ),
    Mutant(
        "broker: a run that is left goes on",
        RUNS,
        "            self.left = because\n            self.task.cancel()\n",
        "            self.left = because\n",
        (f"{RUNS_TESTS}::test_a_run_that_is_left_hears_of_its_end_and_of_nothing_else",),
    ),
    Mutant(
        "broker: runs outlive the stream that carries them",
        RUNS,
        "            run.task.cancel()\n",
        "            pass\n",
        (f"{CLIENT_RUNS_TESTS}::test_a_stream_that_is_over_takes_all_its_runs_with_it_and_tells_nobody",),
    ),
    Mutant(
        "broker: nobody watches the deadline of a run in a session",
        RUNS,
        "            run.timer = asyncio.get_running_loop().call_later(opening.timeout, late)\n",
        "            del late\n",
        (f"{CLIENT_RUNS_TESTS}::test_a_deadline_ends_a_run_as_such",),
    ),
    Mutant(
        "broker: a number may come twice",
        RUNS,
        "        if number <= self._last:\n",
        "        if number < self._last:\n",
        (f"{RUNS_TESTS}::test_frames_that_make_no_sense_end_the_stream[equal]",),
    ),
    Mutant(
        "broker: a client that reads nothing is read on",
        "env_broker/client_stream.py",
        " or self.outbox.waiting > MAX_WAITING",
        "",
        (f"{BOUNDS_TESTS}::test_a_client_that_reads_nothing_cannot_make_the_broker_grow",),
    ),
    Mutant(
        "broker: what a client sends is parsed whatever it holds",
        "env_broker/session_frames.py",
        "        REQUEST.check(data)\n",
        "",
        (BOUNDS_OF_MESSAGES,),
    ),
    Mutant(
        "broker: nobody looks into further frames",
        "env_broker/session_bounds.py",
        "                if stop - start > _SMALL_FRAME_BYTES:\n",
        "                if stop < start:\n",
        (BOUNDS_OF_MESSAGES,),
    ),
    Mutant(
        "broker: a message may have as many fields as it likes",
        "env_broker/session_bounds.py",
        "            self._seen += 1\n",
        "",
        (BOUNDS_OF_MESSAGES,),
    ),
    Mutant(
        "broker: confirmed ids do not count",
        "env_broker/client_reader.py",
        "        self._in_turn += len(request_ids) // _IDS_A_FRAME\n",
        "",
        ("tests/unit/broker/test_client_reader.py",),
    ),
    Mutant(
        "broker: a run that has ended waits for credit",
        "env_broker/run_leg.py",
        "        self._hop.give_up(quietly=quietly)\n",
        "",
        (f"{BOUNDS_TESTS}::test_an_ended_run_does_not_wait_for_credit",),
    ),
    Mutant(
        "broker: behind what was dropped comes what was not",
        "env_broker/client_hop.py",
        "        self._drops = True\n        self._outlet.close()\n",
        "        self._outlet.close()\n",
        (f"{CLIENT_RUNS_TESTS}::test_a_hop_that_is_given_up_drops_what_waits_and_not_what_is_being_written",),
    ),
    Mutant(
        "broker: a run that was left at once was never there",
        RUNS,
        "            self._carrier.left_at_once()\n",
        "            pass\n",
        (CLIENT_RUNS_TESTS,),
    ),
    Mutant(
        "broker: a run that waits is placed for a lost session",
        ROUTES,
        "        if route is None or route.cancelled:\n            return False\n",
        "        if route is None:\n            return False\n",
        (f"{ROUTES_TESTS}::test_a_run_that_waits_is_not_placed_when_its_session_is_lost",),
    ),
    Mutant(
        "broker: what a run wanted to send stays when it has ended",
        "env_broker/client_hop.py",
        "        except asyncio.CancelledError:\n            self._outlet.close()\n",
        "        except asyncio.CancelledError:\n            pass\n",
        (f"{CLIENT_RUNS_TESTS}::test_a_hop_that_is_cancelled_keeps_nothing_of_its_message",),
    ),
    Mutant(
        "broker: a worker that said goodbye is not heard out",
        "env_broker/link.py",
        "                while any(leg.waits for leg in self.legs):",
        "                while False:",
        (f"{CONFIRMS_TESTS}::test_what_a_worker_answers_counts_also_where_its_goodbye_is_heard_first",),
    ),
)

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
        SESSIONS,
        "                self.table.goodbye(stream.session_id, stream.epoch, self._clock.now())\n",
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
        "broker: one of two who confirm is answered",
        "env_broker/confirm.py",
        "                asked.listeners.append(listener)\n",
        "                pass\n",
        (f"{CONFIRMS_TESTS}::test_two_sessions_that_confirm_the_same_run_are_both_answered",),
    ),
)

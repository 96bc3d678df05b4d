"""Bugs of the client's session and of what it does with the answers."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

INTAKE: Final = "env_client/intake.py"
TABLE: Final = "env_client/confirmations.py"
DRIVER: Final = "env_client/session_driver.py"
CONFIRMS_TESTS: Final = "tests/unit/client/test_client_confirms.py"
INTAKE_TESTS: Final = "tests/unit/client/test_intake.py"
TABLE_TESTS: Final = "tests/unit/client/test_confirmations.py"
SESSION_TESTS: Final = "tests/unit/client/test_session.py"

CLIENT_SESSIONS: Final = (
    Mutant(
        "client: deliver before the answer",
        INTAKE,
        "        self._ticket = self._session.confirm(self.request_id, settle)",
        "        self._ticket = self._session.confirm(self.request_id, settle)\n"
        "        settle(Verdict.CONFIRMED)",
        (f"{CONFIRMS_TESTS}::test_a_stream_ends_only_when_the_confirmation_was_answered",),
    ),
    Mutant(
        "client: deliver without a confirmation",
        INTAKE,
        "        self._ticket = self._session.confirm(self.request_id, settle)",
        "        settle(Verdict.CONFIRMED)",
        (f"{CONFIRMS_TESTS}::test_returns_only_when_the_confirmation_was_answered",),
    ),
    Mutant(
        "client: deliver what was taken back",
        INTAKE,
        "        if settlement is Verdict.CONFIRMED or settlement is Verdict.NOT_OFFERED:",
        "        if settlement in (Verdict.CONFIRMED, Verdict.NOT_OFFERED, Verdict.DISCARDED):",
        (f"{CONFIRMS_TESTS}::test_what_was_taken_back_is_not_delivered",),
    ),
    Mutant(
        "client: deliver what a lost worker replied",
        INTAKE,
        "        if settlement is Verdict.CONFIRMED or settlement is Verdict.NOT_OFFERED:",
        "        if settlement in (Verdict.CONFIRMED, Verdict.NOT_OFFERED, Verdict.WORKER_LOST):",
        (f"{CONFIRMS_TESTS}::test_of_a_lost_worker_nobody_can_say",),
    ),
    Mutant(
        "client: deliver what nobody answered",
        INTAKE,
        "        if settlement is Verdict.CONFIRMED or settlement is Verdict.NOT_OFFERED:",
        "        if settlement in (Verdict.CONFIRMED, Verdict.NOT_OFFERED, Verdict.UNANSWERED):",
        (f"{CONFIRMS_TESTS}::test_without_an_answer_nobody_can_say",),
    ),
    Mutant(
        "client: a delivered episode is cancelled",
        INTAKE,
        "            raise self.taken_back()\n        self._owes_cancel = False\n",
        "            raise self.taken_back()\n",
        (f"{INTAKE_TESTS}::test_what_is_delivered_is_not_cancelled",),
    ),
    Mutant(
        "client: an abandoned confirmation leaves all the same",
        INTAKE,
        "                self._session.withdraw(self._ticket)",
        "                pass",
        (f"{INTAKE_TESTS}::test_a_confirmation_that_waits_is_withdrawn_and_the_run_cancelled_once",),
    ),
    Mutant(
        "client: every stream has the first epoch",
        DRIVER,
        "                self._epoch += 1",
        "                self._epoch = 1",
        (f"{SESSION_TESTS}::test_the_next_epoch_repeats_what_was_not_answered",),
    ),
    Mutant(
        "client: UNKNOWN is final",
        DRIVER,
        "            verdict = VERDICTS.get(answer.outcome)",
        "            verdict = VERDICTS.get(answer.outcome, Verdict.UNANSWERED)",
        (f"{SESSION_TESTS}::test_what_is_unknown_is_asked_again",),
    ),
    Mutant(
        "client: answers in `more` are not heard",
        "env_client/session_call.py",
        "                for frame in (response, *response.more):\n",
        "                for frame in (response,):\n",
        (f"{SESSION_TESTS}::test_answers_are_heard_in_all_frames_of_a_message",),
    ),
    Mutant(
        "client: a session that was superseded comes back",
        DRIVER,
        'frozenset({"SESSION_SUPERSEDED"})',
        "frozenset()",
        (f"{SESSION_TESTS}::test_ended_for_good",),
    ),
    Mutant(
        "client: no goodbye",
        DRIVER,
        "            self._call.say_goodbye()",
        "            self._call.cancel()",
        (f"{SESSION_TESTS}::test_opens_confirms_and_says_goodbye",),
    ),
    Mutant(
        "client: a new stream repeats nothing",
        TABLE,
        "        self._ready = {**self._in_flight, **self._ready}",
        "        pass",
        (f"{TABLE_TESTS}::test_a_new_stream_repeats_what_was_not_answered_and_that_first",),
    ),
    Mutant(
        "client: a confirmation is repeated forever",
        TABLE,
        "            if now < entry.asked_at + self.window_seconds:",
        "            if True:",
        (f"{TABLE_TESTS}::test_expires_at_the_end_of_its_window",),
    ),
)

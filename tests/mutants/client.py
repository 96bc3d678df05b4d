"""Bugs of the client: what it owes the server, and when it delivers."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

INTAKE: Final = "env_client/intake.py"
INTAKE_TESTS: Final = "tests/unit/client/test_intake.py"
TELLS_TESTS: Final = "tests/unit/client/test_client_tells.py"
COURIER_TESTS: Final = "tests/unit/client/test_courier.py"

CLIENT: Final = (
    Mutant(
        "no cancel when the callback raises",
        "env_client/stream.py",
        "        self._intake.abandon(cause)\n",
        "",
        (f"{TELLS_TESTS}::test_callback_raises",),
    ),
    Mutant(
        "no cancel after a reply without OK",
        INTAKE,
        '        settled = translated.reason not in ("", "WORKER_LOST") and not self._assembly.replied',
        '        settled = translated.reason not in ("", "WORKER_LOST")',
        (f"{TELLS_TESTS}::test_a_reply_and_then_any_status_but_ok",),
    ),
    Mutant(
        "no cancel after WORKER_LOST",
        INTAKE,
        '        settled = translated.reason not in ("", "WORKER_LOST") and not self._assembly.replied',
        "        settled = bool(translated.reason) and not self._assembly.replied",
        (f"{TELLS_TESTS}::test_statuses",),
    ),
    Mutant(
        "a refused duplicate cancels the first run",
        INTAKE,
        '        if settled or translated.code == "ALREADY_EXISTS":',
        "        if settled:",
        (f"{TELLS_TESTS}::test_statuses",),
    ),
    Mutant(
        "an abandoned run is confirmed",
        INTAKE,
        "        self.check_wanted()\n        self._ticket =",
        "        self._ticket =",
        (f"{INTAKE_TESTS}::test_a_run_that_was_abandoned_is_not_confirmed",),
    ),
    Mutant(
        "deliver what was abandoned",
        INTAKE,
        "            raise self.taken_back()\n        self._owes_cancel = False\n",
        "            pass\n        self._owes_cancel = False\n",
        (f"{INTAKE_TESTS}::test_what_was_abandoned_is_not_delivered_whatever_is_answered",),
    ),
    Mutant(
        "a cancel that is remembered is not repeated",
        "env_client/courier.py",
        "            return outcome != CancelOutcome.CANCEL_OUTCOME_REMEMBERED",
        "            return True",
        (f"{COURIER_TESTS}::test_repeats_what_is_remembered_until_the_window_is_over",),
    ),
    Mutant(
        "a cancel that met UNAVAILABLE is not repeated",
        "env_client/courier.py",
        "        grpc.StatusCode.UNAVAILABLE,\n        grpc.StatusCode.DEADLINE_EXCEEDED,\n",
        "        grpc.StatusCode.DEADLINE_EXCEEDED,\n",
        (f"{COURIER_TESTS}::test_repeats_until_it_is_answered",),
    ),
)

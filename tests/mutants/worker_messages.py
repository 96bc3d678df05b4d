"""Bugs of how a worker takes a session's large messages."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

BOUNDS: Final = "env_worker/session_bounds.py"
FRAMES: Final = "env_worker/session_frames.py"
STREAM: Final = "env_worker/session_stream.py"
BOUNDS_TESTS: Final = "tests/unit/worker/test_session_bounds.py"
TURNS_TESTS: Final = "tests/integration/test_worker_session_turns.py"

WORKER_MESSAGES: Final = (
    Mutant(
        "worker: a message is parsed whatever it holds",
        FRAMES,
        "    check_bounds(data)\n",
        "",
        (TURNS_TESTS,),
    ),
    Mutant(
        "worker: a frame in `more` is not looked into",
        BOUNDS,
        "                self.frame(first, behind, inner=True)\n",
        "",
        (BOUNDS_TESTS,),
    ),
    Mutant(
        "worker: a message has any number of fields",
        BOUNDS,
        "            if self._left < 0:",
        "            if False:",
        (BOUNDS_TESTS,),
    ),
    Mutant(
        "worker: ids that are not well-formed count by their bytes",
        BOUNDS,
        "if rest or tags.count(_ID) < count or sizes.count(_ID_BYTES) < count:",
        "if rest:",
        (BOUNDS_TESTS,),
    ),
    Mutant(
        "worker: confirming leaves nobody a turn",
        STREAM,
        "                    done += len(answers.answers)\n",
        "",
        (TURNS_TESTS,),
    ),
    Mutant(
        "worker: large requests leave nobody a turn",
        STREAM,
        "await self._runs.open(frame.open_run) // BYTES_AT_COST",
        "0 * await self._runs.open(frame.open_run)",
        (TURNS_TESTS,),
    ),
    Mutant(
        "worker: many runs leave nobody a turn",
        STREAM,
        "done += OPEN_COST + ",
        "done += ",
        (TURNS_TESTS,),
    ),
)

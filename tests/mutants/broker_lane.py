"""Bugs of the broker's lane to a worker."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

RUN: Final = "env_broker/lane_run.py"
TABLE: Final = "env_broker/lane_table.py"
LANE: Final = "env_broker/worker_lane.py"
RUN_TESTS: Final = "tests/unit/broker/test_lane_run.py"
TABLE_TESTS: Final = "tests/unit/broker/test_lane_table.py"
MACHINE: Final = "tests/property/test_lane_table_machine.py"
LANE_TESTS: Final = "tests/integration/test_broker_worker_lane.py"
ENDS_TESTS: Final = "tests/integration/test_broker_worker_lane_ends.py"
BOUNDS_TESTS: Final = "tests/unit/broker/test_session_bounds.py"

BROKER_LANE: Final = (
    Mutant(
        "lane: a worker is not told that a run was left",
        TABLE,
        "        elif self._runs.pop(run.number, None) is not None:\n            self.due(run)\n",
        "        else:\n            self._runs.pop(run.number, None)\n",
        (TABLE_TESTS, "tests/integration/test_broker_cancel.py"),
    ),
    Mutant(
        "lane: a run that was left before it was sent is sent",
        TABLE,
        "            self._due.pop(run, None)\n        elif",
        "            pass\n        elif",
        (TABLE_TESTS,),
    ),
    Mutant(
        "lane: a run that was left stays in the table",
        TABLE,
        "self._runs.pop(run.number, None) is not None:",
        "run.number in self._runs:",
        (MACHINE,),
    ),
    Mutant(
        "lane: what was never sent is lost with the stream",
        TABLE,
        "            if not fall_back:\n",
        "            if not fall_back or not run.number:\n",
        (TABLE_TESTS, MACHINE),
    ),
    Mutant(
        "lane: a small frame waits behind no large one",
        TABLE,
        "            if frames and size + run.weight > lane_frames.MESSAGE_BYTES:\n",
        "            if size > lane_frames.MESSAGE_BYTES:\n",
        (TABLE_TESTS,),
    ),
    Mutant(
        "lane: data of a run that was never opened is nobody's",
        TABLE,
        "        if run is None and not 0 < number <= self._last:\n",
        "        if run is None and number < 0:\n",
        (TABLE_TESTS, ENDS_TESTS),
    ),
    Mutant(
        "lane: a worker sends as much as it likes",
        RUN,
        "        if self._allowed <= 0:\n",
        "        if self._allowed <= 0 and not data:\n",
        (RUN_TESTS,),
    ),
    Mutant(
        "lane: what was read earns no credit",
        RUN,
        "        if self._taken >= LUMP_BYTES // 2 and self._end is None:\n",
        "        if self._taken < 0 and self._end is None:\n",
        (RUN_TESTS, MACHINE),
    ),
    Mutant(
        "lane: all credit for a worker waits for another frame",
        RUN,
        "pressing=self._taken >= LUMP_BYTES)",
        "pressing=False)",
        (RUN_TESTS, TABLE_TESTS, MACHINE),
    ),
    Mutant(
        "lane: any credit for a worker is worth a message",
        TABLE,
        "        while self._pressing and self._due",
        "        while self._due",
        (TABLE_TESTS,),
    ),
    Mutant(
        "lane: credit is given twice",
        RUN,
        "        credit, self._taken = self._taken, 0\n",
        "        credit = self._taken\n",
        (RUN_TESTS,),
    ),
    Mutant(
        "lane: the end overtakes what came before it",
        RUN,
        "        while not self._parts:\n",
        "        while not self._parts or self._end is not None:\n",
        (RUN_TESTS,),
    ),
    Mutant(
        "lane: only the worker watches the deadline",
        RUN,
        "            self._timer = loop.call_at(self._deadline, self._expire)\n",
        "",
        (RUN_TESTS,),
    ),
    Mutant(
        "lane: a cancel leaves its reader waiting",
        RUN,
        "            if self._waiter is not None:\n                self._waiter.cancel()\n",
        "",
        (RUN_TESTS,),
    ),
    Mutant(
        "lane: runs go to whoever is at the address",
        LANE,
        "        if opened.instance != self._instance:\n",
        "        if not opened.instance:\n",
        (f"{ENDS_TESTS}::test_no_run_goes_to_another_process_at_the_address",),
    ),
    Mutant(
        "lane: a large request holds up the others",
        LANE,
        "            and len(request.data) <= MAX_REQUEST_BYTES\n",
        "",
        (f"{LANE_TESTS}::test_a_large_request_goes_by_itself",),
    ),
    Mutant(
        "lane: what a worker sends is parsed whatever it holds",
        "env_broker/worker_messages.py",
        "        RESPONSE.check(data)\n",
        "",
        (f"{BOUNDS_TESTS}::test_a_workers_message_is_bounded_likewise",),
    ),
    Mutant(
        "lane: one that cannot fall back leaves the others waiting",
        TABLE,
        "            except Exception as error:  #",
        "            except ZeroDivisionError as error:  #",
        (TABLE_TESTS,),
    ),
    Mutant(
        "lane: all workers have one session",
        "env_broker/session_names.py",
        "hashlib.blake2b(instance.encode(), key",
        "hashlib.blake2b(key",
        ("tests/unit/broker/test_session_names.py", ENDS_TESTS),
    ),
    Mutant(
        "lane: it outlives its worker",
        "env_broker/link.py",
        "            leg.worker_lost()\n        self.lane.end()\n",
        "            leg.worker_lost()\n",
        (f"{ENDS_TESTS}::test_a_link_that_is_lost_or_closed_ends_its_lane",),
    ),
    Mutant(
        "lane: a broken one is never opened again",
        LANE,
        '        """Without an await, so that no run comes in between."""\n        self._table = None\n',
        '        """Without an await, so that no run comes in between."""\n',
        (f"{ENDS_TESTS}::test_when_it_breaks_its_runs_are_lost_and_the_next_one_opens_it_anew",),
    ),
)

"""Bugs of training arrays: what is kept, found, sent, mapped and freed."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

HOLDINGS: Final = "env_worker/arrays/holdings.py"
TABLE: Final = "env_worker/arrays/table.py"
SEGMENT: Final = "env_worker/arrays/segment.py"
CHECKS: Final = "env_worker/arrays/checks.py"
COLUMN: Final = "env_worker/arrays/column.py"
BRANCH: Final = "env_worker/arrays/branch.py"
SERVICER: Final = "env_worker/arrays/servicer.py"
MAP: Final = "env_client/training_arrays/map.py"
BODY: Final = "env_client/training_arrays/body.py"
STORE_TESTS: Final = "tests/unit/worker/arrays"
LAYOUT_TESTS: Final = "tests/property/test_array_layout.py"
SERVICE_TESTS: Final = "tests/integration/test_array_service.py"
CLIENT_TESTS: Final = "tests/unit/client/arrays"

ARRAYS: Final = (
    Mutant(
        "a fetch does not hold what it reads",
        HOLDINGS,
        "            branch.trace.segment.hold()\n",
        "",
        (f"{STORE_TESTS}/test_fetch.py", f"{STORE_TESTS}/test_store.py"),
    ),
    Mutant(
        "what is gone still counts",
        HOLDINGS,
        "            self._budget.free(trace.medium, trace.size)\n            self._table.gone(trace)\n",
        "            self._table.gone(trace)\n",
        (f"{STORE_TESTS}/test_store.py",),
    ),
    Mutant(
        "a lease ends beside a fetch",
        TABLE,
        "and not episode.open_fetches and episode.renewed_at",
        "and episode.renewed_at",
        (f"{STORE_TESTS}/test_lease.py",),
    ),
    Mutant(
        "a released branch is found",
        TABLE,
        "        if (branch := self._branches.pop(key, None)) is None:\n",
        "        if (branch := self._branches.get(key)) is None:\n",
        (f"{STORE_TESTS}/test_store.py",),
    ),
    Mutant(
        "a segment can be written to",
        SEGMENT,
        "fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW",
        "fcntl.F_SEAL_GROW",
        (f"{STORE_TESTS}/test_segment.py",),
    ),
    Mutant(
        "a forked child keeps what its parent frees",
        SEGMENT,
        "    os.register_at_fork(after_in_child=_close_inherited)\n",
        "    pass\n",
        (f"{STORE_TESTS}/test_segment.py",),
    ),
    Mutant(
        "a checksum forgets what lies before the range",
        COLUMN,
        "return crc32c.cut_front(until, before, (end - start) * element_bytes)",
        "return until",
        (LAYOUT_TESTS,),
    ),
    Mutant(
        "a range begins with the ids of the token before it",
        BRANCH,
        "        return sampled - int(np.count_nonzero(self._tokens.masks[node][token - begin :]))\n",
        "        return sampled - int(np.count_nonzero(self._tokens.masks[node][token - begin + 1 :]))\n",
        (LAYOUT_TESTS,),
    ),
    Mutant(
        "another instance's arrays are looked for here",
        SERVICER,
        "        if request.instance != (ours := self._arrays.home.instance):\n",
        "        if not (ours := self._arrays.home.instance):\n",
        (SERVICE_TESTS,),
    ),
    Mutant(
        "a place among the fetches is never given back",
        SERVICER,
        "            self._fetches -= 1\n",
        "            pass\n",
        (SERVICE_TESTS, "tests/integration/test_array_service_faults.py"),
    ),
    Mutant(
        "whatever file has that number is taken for the worker's",
        MAP,
        "        if os.pread(file, len(header), 0) != header:\n",
        "        if not os.pread(file, len(header), 0):\n",
        (f"{CLIENT_TESTS}/test_array_map.py",),
    ),
    Mutant(
        "what a trainer writes reaches the worker's file",
        MAP,
        "mmap.MAP_PRIVATE | _MAP_NORESERVE",
        "mmap.MAP_SHARED | _MAP_NORESERVE",
        (f"{CLIENT_TESTS}/test_array_map.py",),
    ),
    Mutant(
        "a stream's checksum is not looked at",
        BODY,
        "        if self._crc32c != self._answer.body_crc32c:\n",
        "        if self._crc32c < 0:\n",
        (f"{CLIENT_TESTS}/test_array_fetch_failures.py",),
    ),
    Mutant(
        "a row that no engine filled is trained on",
        CHECKS,
        "        if zeros[0] != tokens - 1:\n",
        "        if zeros[0] < 0:\n",
        (LAYOUT_TESTS, f"{STORE_TESTS}/test_checks.py"),
    ),
)

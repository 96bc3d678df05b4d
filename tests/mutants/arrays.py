"""Bugs of training arrays: what is kept, found, sent, mapped and freed."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

HOLDINGS: Final = "env_worker/arrays/holdings.py"
TABLE: Final = "env_worker/arrays/table.py"
CHECKS: Final = "env_worker/arrays/checks.py"
COLUMN: Final = "env_worker/arrays/column.py"
BRANCH: Final = "env_worker/arrays/branch.py"
SERVICER: Final = "env_worker/arrays/servicer.py"
OUTFLOW: Final = "env_worker/arrays/outflow.py"
PLACES: Final = "env_worker/arrays/places.py"
MAP: Final = "env_client/training_arrays/map.py"
PAGES: Final = "env_client/training_arrays/pages.py"
PREFAULT: Final = "env_client/training_arrays/prefault.py"
BODY: Final = "env_client/training_arrays/body.py"
REFERENCE: Final = "env_client/training_arrays/reference.py"
HOSTS: Final = "env_client/training_arrays/hosts.py"
BATCH: Final = "env_client/training_arrays/batch.py"
CLIENT: Final = "env_client/training_arrays/client.py"
RELEASE: Final = "env_client/training_arrays/release.py"
STATUS: Final = "env_client/training_arrays/status.py"
FETCHER: Final = "env_client/training_arrays/fetch.py"
STORE_TESTS: Final = "tests/unit/worker/arrays"
ROUTING: Final = "env_worker/domain/routing.py"
ROUTING_TESTS: Final = "tests/unit/worker/domain/test_domain_routing.py"
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
        "an earlier repair goes before a later one",
        ROUTING,
        "            for one in here:\n",
        "            for one in reversed(here):\n",
        (ROUTING_TESTS, LAYOUT_TESTS),
    ),
    Mutant(
        "a repair is what its caller goes on to write",
        ROUTING,
        "        copied = rows.copy()\n",
        "        copied = rows.view()\n",
        (ROUTING_TESTS,),
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
        "            return sampled - int(np.count_nonzero(mask[token - begin :]))\n",
        "            return sampled - int(np.count_nonzero(mask[token - begin + 1 :]))\n",
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
        "all fetches read and write at once",
        OUTFLOW,
        "                async with self._turns:\n",
        "                if self._turns:\n",
        (f"{STORE_TESTS}/test_outflow.py",),
    ),
    Mutant(
        "a caller that takes nothing holds its turn",
        OUTFLOW,
        "                    if self._taken_in <= TURN_SECONDS:\n",
        "                    if self._taken_in:\n",
        (f"{STORE_TESTS}/test_outflow.py",),
    ),
    Mutant(
        "whoever stalled last loses its place",
        PLACES,
        "key=lambda entry: entry[0],",
        "key=lambda entry: -entry[0],",
        (f"{STORE_TESTS}/test_places.py",),
    ),
    Mutant(
        "whatever file has that number is taken for the worker's",
        MAP,
        "    if found != header:\n",
        "    if not found:\n",
        (f"{CLIENT_TESTS}/test_array_offers.py",),
    ),
    Mutant(
        "what a trainer writes reaches the worker's file",
        PAGES,
        "mmap.MAP_PRIVATE | _MAP_NORESERVE",
        "mmap.MAP_SHARED | _MAP_NORESERVE",
        (f"{CLIENT_TESTS}/test_array_map.py",),
    ),
    Mutant(
        "a stream's checksum is not looked at",
        BODY,
        "    if found != answer.body_crc32c:\n",
        "    if found < 0:\n",
        (f"{CLIENT_TESTS}/test_array_fetch_failures.py", f"{CLIENT_TESTS}/test_array_map.py"),
    ),
    Mutant(
        "a file that can be cut short is mapped",
        MAP,
        "        return fcntl.fcntl(file, fcntl.F_GET_SEALS) & needed == needed\n",
        "        return fcntl.fcntl(file, fcntl.F_GET_SEALS) >= 0\n",
        (f"{CLIENT_TESTS}/test_array_map.py",),
    ),
    Mutant(
        "one thread keeps an array for the other that enters its pages",
        PREFAULT,
        "                    return pages.region, begin",
        "                    return pages, begin  # type: ignore[return-value]",
        (f"{CLIENT_TESTS}/test_array_pages.py",),
    ),
    Mutant(
        "arrays to read into may be one memory",
        BODY,
        "        if np.may_share_memory(array, its):",
        "        if array is its:",
        (f"{CLIENT_TESTS}/test_array_fetch.py",),
    ),
    Mutant(
        "a branch may have other rows than tokens",
        REFERENCE,
        "        fits = first == tokens and len",
        "        fits = len",
        (f"{CLIENT_TESTS}/test_array_reference.py",),
    ),
    Mutant(
        "a token goes to whatever address a reference names",
        HOSTS,
        "        if hosts is None and credentials is not None:\n",
        "        if hosts is not None and credentials is not None and not hosts:\n",
        (f"{CLIENT_TESTS}/test_array_hosts.py",),
    ),
    Mutant(
        "a row that no engine filled is trained on",
        CHECKS,
        "        if zeros[0] != tokens - 1:\n",
        "        if zeros[0] < 0:\n",
        (LAYOUT_TESTS, f"{STORE_TESTS}/test_checks.py"),
    ),
    Mutant(
        "a repaired row is taken for what it was",
        CHECKS,
        "        others = zeros[(zeros < first) | (zeros >= first + len(rows))]\n",
        "        others = zeros\n",
        (f"{STORE_TESTS}/test_checks.py",),
    ),
    Mutant(
        "a row that begins with zeros is taken for empty",
        CHECKS,
        "    return doubtful[~experts[doubtful].any(axis=(1, 2))]\n",
        "    return doubtful\n",
        (f"{STORE_TESTS}/test_checks.py",),
    ),
    Mutant(
        "a lost worker is shown without what it held",
        "env_broker/view.py",
        "        view.running = view.open_windows = 0\n",
        "        view.running = view.open_windows = view.held_array_bytes = 0\n",
        ("tests/unit/broker/test_view.py",),
    ),
    Mutant(
        "runs of env-client have no owner",
        "env_client/cli.py",
        "    owner = settings.owner or ",
        "    owner = settings.owner if settings is not None else ",
        ("tests/unit/client/test_cli.py::test_run_says_how_the_arrays_that_it_leaves_are_freed",),
    ),
    Mutant(
        "a second cancel leaves a thread that writes",
        CLIENT,
        "        await _end_however_cancelled(ended)\n",
        "        await asyncio.wait([ended])\n",
        (f"{CLIENT_TESTS}/test_array_client.py",),
    ),
    Mutant(
        "an error leaves the other fetches alone",
        BATCH,
        "            self._error = self._error or error\n            self._is_over = True\n",
        "            self._error = self._error or error\n",
        (f"{CLIENT_TESTS}/test_array_batch.py", f"{CLIENT_TESTS}/test_sync_array_client.py"),
    ),
    Mutant(
        "whoever is silent is gone",
        STATUS,
        ' and not error.reason and "Connection refused" in str(error)',
        "",
        (f"{CLIENT_TESTS}/test_array_release.py",),
    ),
    Mutant(
        "a worker whose turn comes late is not asked",
        RELEASE,
        "            left = min(seconds, max(left, FIRST_TRY_SECONDS))\n",
        "            left = min(seconds, left)\n",
        (f"{CLIENT_TESTS}/test_array_release.py",),
    ),
    Mutant(
        "a lost worker is forgotten at once",
        FETCHER,
        "            self._lost.add(reference.address, reference.instance)\n",
        "            pass\n",
        (f"{CLIENT_TESTS}/test_array_lost.py",),
    ),
)

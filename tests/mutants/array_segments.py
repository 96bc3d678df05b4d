"""Bugs of the files that training arrays lie in: how they are written, frozen, used again and freed."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

SEGMENT: Final = "env_worker/arrays/segment.py"
WRITER: Final = "env_worker/arrays/writer.py"
SPARES: Final = "env_worker/arrays/spares.py"
FORKS: Final = "env_worker/arrays/forks.py"
STORE_TESTS: Final = "tests/unit/worker/arrays"
LAYOUT_TESTS: Final = "tests/property/test_array_layout.py"

ARRAY_SEGMENTS: Final = (
    Mutant(
        "a segment can be written to",
        SEGMENT,
        "fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW",
        "fcntl.F_SEAL_GROW",
        (f"{STORE_TESTS}/test_segment.py",),
    ),
    Mutant(
        "a forked child keeps what its parent frees",
        FORKS,
        "    while _kept_back:\n",
        "    while not _kept_back:\n",
        (f"{STORE_TESTS}/test_segment.py",),
    ),
    Mutant(
        "a fork in the midst of a new segment leaves it to the child",
        FORKS,
        "    _gate.wait_for(lambda: not _changes, _PATIENCE_SECONDS)\n",
        "",
        (f"{STORE_TESTS}/test_segment.py",),
    ),
    Mutant(
        "a piece that does not follow the one before it is written behind it",
        WRITER,
        "        self._fill(offset)\n        self._gather(piece)\n",
        "        self._gather(piece)\n",
        (f"{STORE_TESTS}/test_writer.py", LAYOUT_TESTS),
    ),
    Mutant(
        "behind the last piece lies what was in the file",
        WRITER,
        "        self._fill(self._size)\n",
        "",
        (f"{STORE_TESTS}/test_writer.py", f"{STORE_TESTS}/test_recycling.py"),
    ),
    Mutant(
        "memory that was offered is written again",
        SEGMENT,
        "        elif self._shared or self.in_file:\n",
        "        elif self.in_file:\n",
        (f"{STORE_TESTS}/test_recycling.py",),
    ),
    Mutant(
        "a file that was used keeps its old end",
        SPARES,
        "            os.ftruncate(fd, size)\n",
        "",
        (f"{STORE_TESTS}/test_spares.py", f"{STORE_TESTS}/test_recycling.py"),
    ),
    Mutant(
        "spare files take room from what is held",
        SPARES,
        "                fd = _resized(spare.fd, size)\n            self._give_way()\n",
        "                fd = _resized(spare.fd, size)\n",
        (f"{STORE_TESTS}/test_spares.py", f"{STORE_TESTS}/test_recycling.py"),
    ),
    Mutant(
        "spare files are never given back",
        "env_worker/arrays/store.py",
        "        self._spares.expire()\n",
        "",
        (f"{STORE_TESTS}/test_recycling.py",),
    ),
    Mutant(
        "the rest of a short write goes to where its begin went",
        WRITER,
        "        offset += done\n",
        "",
        (f"{STORE_TESTS}/test_writer.py",),
    ),
)

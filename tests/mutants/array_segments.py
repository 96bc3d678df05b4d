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
        "memory that could not be frozen is offered when it is asked for again",
        SEGMENT,
        "            except OSError:  # somebody may still write to it\n",
        "            except OSError:\n                self._trusted = True\n",
        (f"{STORE_TESTS}/test_segment.py", f"{STORE_TESTS}/test_recycling.py"),
    ),
    Mutant(
        "memory is summed before it is frozen",
        SEGMENT,
        "                _freeze(fd)\n                self._trusted = self._is_intact(partial(_read, fd))\n",
        "                self._trusted = self._is_intact(partial(_read, fd))\n                _freeze(fd)\n",
        (f"{STORE_TESTS}/test_segment.py",),
    ),
    Mutant(
        "of each array only its first run of nodes is summed",
        "env_worker/arrays/column.py",
        "                return False\n        return True\n",
        "                return False\n            return True\n        return True\n",
        (f"{STORE_TESTS}/test_layout.py",),
    ),
    Mutant(
        "of keeps that are refused together only the one that finds spare files is made again",
        SPARES,
        "                self.clear()\n                if _HERE",
        "                freed = _HERE.freed\n                self.clear()\n                if _HERE",
        (f"{STORE_TESTS}/test_spares.py", f"{STORE_TESTS}/test_recycling.py"),
    ),
    Mutant(
        "a spare file that was cut does not count as freed",
        SPARES,
        "_HERE.freed += fd is None or size < spare.size",
        "_HERE.freed += fd is None",
        (f"{STORE_TESTS}/test_spares.py",),
    ),
    Mutant(
        "a forked child has the list of its parent's spare files",
        SPARES,
        "        self.lock = threading.Lock()\n        self.files.clear()\n",
        "        self.lock = threading.Lock()\n",
        (f"{STORE_TESTS}/test_recycling.py",),
    ),
    Mutant(
        "a forked child closes what has the number of its parent's segment",
        FORKS,
        "        if is_unshared(fd):\n            _kept_back.discard(fd)\n            os.close(fd)\n",
        "        _kept_back.discard(fd)\n        os.close(fd)\n",
        (f"{STORE_TESTS}/test_recycling.py",),
    ),
    Mutant(
        "nothing gives way to a trace without arrays",
        SEGMENT,
        "        spares.give_way()  # its page counts as held, though it is none\n",
        "",
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
        "            self._give_way()\n            return fd\n",
        "            return fd\n",
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

"""Which tests stay together where several processes share them: those that share what is dear to start."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

LASTING = ("tests/conformance", "tests/faults")
"""Their pools are the first parameter of their tests, and serve all tests that have it."""


class PoolScheduling(LoadFileScheduling):
    """Gives a process all tests of a file; of the packages above, all tests of a pool.

    What needs to be alone in its process, or counts on the order of a file, may do so as in a serial run.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        package = file.rpartition("/")[0]
        _, bracket, parameters = test.partition("[")
        if package in LASTING and bracket:
            return f"{package}[{parameters.rstrip(']').partition('-')[0]}]"
        return file

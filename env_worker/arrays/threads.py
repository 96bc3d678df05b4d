"""The threads that serve training arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from env_worker.thread_pool import started_pool

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_MEMORY_THREADS: Final = 4
_DISK_THREADS: Final = 4
_FREEING_THREADS: Final = 2


class ArrayThreads:
    """Pools for what may wait for a lock, a disk, or the system. A slow disk keeps nobody from arrays in
    memory. RuntimeError if threads cannot be started."""

    def __init__(self) -> None:
        pools: list[ThreadPoolExecutor] = []
        try:
            for threads, name in (
                (_MEMORY_THREADS, "arrays"), (_DISK_THREADS, "array-disk"), (_FREEING_THREADS, "array-frees"),
            ):  # fmt: skip
                pools.append(started_pool(threads, name))
        except RuntimeError:
            _end(pools)
            raise
        self._memory, self._disk, self.freeing = self._pools = pools
        """`freeing` is for releases and leases, which close files on a disk too."""

    def of(self, *, spilled: bool) -> ThreadPoolExecutor:
        """For opening, reading and closing a fetch of arrays in memory, or of those that lie on a disk."""
        return self._disk if spilled else self._memory

    def close(self) -> None:
        """Take no more calls. Does not wait for those that run."""
        _end(self._pools)


def _end(pools: list[ThreadPoolExecutor]) -> None:
    for pool in pools:
        pool.shutdown(wait=False)

"""Pools of threads that are all there from the start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool that has all its threads. RuntimeError if they cannot be started; then there is none of them.

    One that starts them later takes a call before it starts a thread for it: where that failed, another
    thread would still make the call, a keep beside its own discard.
    """
    pool = ThreadPoolExecutor(threads, name)
    all_there = threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(all_there.wait)
    except RuntimeError:
        all_there.abort()
        pool.shutdown(wait=False)
        raise
    return pool

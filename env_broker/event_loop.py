"""The event loop that this service's network runs on."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, Final, TypeVar

try:
    from uvloop import new_event_loop as _new_event_loop
except ImportError:  # there is none for this platform: asyncio's own does the same with more CPU
    _new_event_loop = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")

_COLLECT_AFTER: Final = (10_000, 10, 10)
"""Runs leave no cycles behind, and no code of others runs here: it looks less often than by default."""


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` as the job of this process, to its end, as `asyncio.run` does; on uvloop where there is one.

    What was imported by now stays, and is not looked through by the garbage collector again: that would hold
    up every run for some milliseconds.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

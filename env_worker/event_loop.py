"""The event loop that this service's network runs on."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, TypeVar

try:
    from uvloop import new_event_loop as _new_event_loop
except ImportError:  # there is none for this platform: asyncio's own does the same with more CPU
    _new_event_loop = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` as the job of this process, to its end, as `asyncio.run` does; on uvloop where there is one.

    What was imported by now stays, and is not looked through by the garbage collector meanwhile: that would
    hold up every run for some milliseconds. How often it looks is left as it is: environments, which run in
    this process, may leave cycles with whole episodes of arrays in them.
    """
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            return runner.run(main)
    finally:
        gc.unfreeze()

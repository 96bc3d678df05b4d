"""Tasks that nobody awaits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)


def log_failure(task: asyncio.Task[None]) -> None:
    """For `add_done_callback`: what ended a task early is in the log at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("task=%s failed, a fault of the worker itself", task.get_name(), exc_info=error)

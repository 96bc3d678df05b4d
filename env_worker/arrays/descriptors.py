"""How many segments the process may have open."""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

_UNLIMITED: Final = 2**20
_LEFT_FREE: Final = 256


def room_for_segments() -> int:
    """Let the process open as many files as the system allows it, and say how many of them may be segments.

    A quarter, and at least 256, is left for connections: a worker that has no descriptor left could not be
    told to release any.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d of %d: %s", soft, hard, error)
        else:
            logger.info("the limit of open files is raised from %d to %d, for training arrays", soft, hard)
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = _UNLIMITED
    return max(1, soft - max(_LEFT_FREE, soft // 4))

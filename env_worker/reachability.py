"""Whether the broker can dial this worker, as the worker's own log says it."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)


class Reachability:
    """What the broker says of it during one lease.

    Args:
        broker: its HOST:PORT.
        address: where this worker says that it can be reached.
    """

    def __init__(self, broker: str, address: str) -> None:
        self._broker: Final = broker
        self._address: Final = address
        self._because = ""

    def heard(self, because: str) -> None:
        """The broker cannot reach this worker, for that cause; empty: it can, or has not tried yet. What is
        new is logged."""
        if because == self._because:
            return
        self._because = because
        if because:
            logger.warning(
                "broker=%s cannot reach this worker at %s and gives it no runs: %s",
                self._broker, self._address, because,
            )  # fmt: skip
        else:
            logger.info("broker=%s reaches this worker at %s now", self._broker, self._address)

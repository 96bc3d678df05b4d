"""What the broker calls its own sessions at workers, which no run has."""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import Final


class SessionNames:
    """A session for each worker, and epochs that grow also when a worker comes back.

    Whoever knows a session's name can take it over, so a worker learns that of its own session, and from it
    no other's.
    """

    def __init__(self) -> None:
        self._secret: Final = os.urandom(32)
        self._epochs: Final = itertools.count(1)

    def session_id(self, instance: str) -> str:
        """At that worker: 32 hexadecimal digits, the same for as long as the broker lives."""
        return hashlib.blake2b(instance.encode(), key=self._secret, digest_size=16).hexdigest()

    def next_epoch(self) -> int:
        """For the next stream, whichever worker it goes to."""
        return next(self._epochs)

"""The process that a client lives in. Threads and gRPC channels do not survive a fork."""

from __future__ import annotations

import os


class Home:
    """The process in which something was first used; None yet where it was not.

    What was made but not used before a fork is used in each child as if it had been made there.
    """

    def __init__(self) -> None:
        self._pid: int | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it was used in another process: in this one, nothing of it works, and nothing is owed."""
        return self._pid is not None and self._pid != os.getpid()

    def claim(self) -> None:
        """Use it in this process.

        Raises:
            RuntimeError: it was used in another one.
        """
        self.check()
        self._pid = os.getpid()

    def check(self) -> None:
        """Refuse what was used in another process.

        Raises:
            RuntimeError: it was.
        """
        if self.is_foreign:
            raise RuntimeError(
                f"this client was used in process {self._pid} and is called in process {os.getpid()}, a fork "
                "of it: its threads and channels are not there; make the client after the fork"
            )

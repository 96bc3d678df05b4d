"""A RecordingHook that holds the arrays of what it kept until the test releases them.

Name it `tests.helpers.holding_hook:HoldingHook`. They are released when the file exists whose path is in the
environment variable `ENVTRIO_TEST_RELEASED`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.recording_hook import RecordingHook

if TYPE_CHECKING:
    from env_worker.domain import Episode, SamplingParams

RELEASED = "ENVTRIO_TEST_RELEASED"


class HoldingHook(RecordingHook):
    """Says what it holds, as a hook may."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[str, int] = {}
        self._released = Path(os.environ[RELEASED])

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        super().keep(episode, sampling)
        self._held[episode.id] = 1000

    def discard(self, episode: Episode) -> None:
        self._held.pop(episode.id, None)
        super().discard(episode)

    @property
    def held_arrays(self) -> int:
        """Episodes."""
        if self._released.exists():
            self._held.clear()
        return len(self._held)

    @property
    def held_array_bytes(self) -> int:
        """Bytes."""
        return sum(self._held.values())

"""A recording hook that holds the arrays of runs that ask for it, each until the test releases it.

Name it `tests.helpers.selective_hook:SelectiveHook`. A run whose group_id has the word "hold" leaves a file
in the directory of `ENVTRIO_TEST_HELD`, named after the process and the run; who removes it has released its
arrays.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.recording_hook import RecordingHook

if TYPE_CHECKING:
    from env_worker.domain import Episode, SamplingParams

VARIABLE = "ENVTRIO_TEST_HELD"


class SelectiveHook(RecordingHook):
    """Holds one file for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = Path(os.environ[VARIABLE])

    @property
    def held_arrays(self) -> int:
        """Episodes."""
        return len(list(self._directory.glob(f"{os.getpid()}-*")))

    @property
    def held_array_bytes(self) -> int:
        """Bytes."""
        return 100 * self.held_arrays

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        super().keep(episode, sampling)
        if "hold" in (episode.group_id or "").split():
            self._file(episode).touch()

    def discard(self, episode: Episode) -> None:
        self._file(episode).unlink(missing_ok=True)
        super().discard(episode)

    def _file(self, episode: Episode) -> Path:
        return self._directory / f"{os.getpid()}-{episode.request_id}"

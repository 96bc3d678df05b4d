"""A hook that writes what it keeps in a process of its own, as it has time for it.

Name it `tests.helpers.writing_hook:WritingHook`. What is kept is written into the directory that the
environment variable `ENVTRIO_TEST_WRITTEN` names, once the `Gate` there is passed.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from tests.helpers.gate import pass_blocking

if TYPE_CHECKING:
    from env_worker.domain import Episode, SamplingParams

WRITTEN = "ENVTRIO_TEST_WRITTEN"


class WritingHook:
    """Keeps by handing on."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        self._pool.submit(_write, episode.request_id)

    def discard(self, episode: Episode) -> None: ...


def _write(run: str) -> None:
    directory = Path(os.environ[WRITTEN])
    pass_blocking(str(directory / "gate"))
    (directory / run).touch()

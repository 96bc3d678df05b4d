"""Ends what a killed worker's harnesses have left: run as a process of its own by `reaping`."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_worker.envs.verifiers.leavings import remove
from env_worker.envs.verifiers.processes import kill, marked

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK_SECONDS: Final = 1.0


def main(arguments: Sequence[str]) -> None:
    """Wait for the end of standard input, or of the parent; unless something was said there, kill the
    processes of the mark and remove the files. Arguments: mark, folder or "", pattern of files."""
    mark, folder, files = arguments
    parent = os.getppid()
    # A child that the worker has forked may hold the pipe open: so the parent is looked at too.
    while not select.select((0,), (), (), _LOOK_SECONDS)[0]:
        if os.getppid() != parent:
            break
    else:
        if os.read(0, 1):
            return
    kill(marked(mark))
    remove(Path(folder) if folder else None, files)

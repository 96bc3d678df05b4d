"""Files that harnesses leave behind."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def remove(folder: Path | None, files: str) -> None:
    """Remove a folder with all that is in it, and the files that a pattern matches."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for path in glob.glob(files):
        with contextlib.suppress(OSError):
            os.unlink(path)

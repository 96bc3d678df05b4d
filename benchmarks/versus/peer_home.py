"""The peer's environment: a folder of its own, so that what it needs and what we need never meet."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

PACKAGE: Final = "verifiers"
VERSION: Final = "0.4.1.dev86"
_CHECK: Final = "import verifiers.v1.serve, importlib.metadata as m; print(m.version('verifiers'))"
_INSTALL_SECONDS: Final = 900.0
_CHECK_SECONDS: Final = 120.0


class PeerMissing(Exception):
    """There is no peer to measure; the message says why, and what to do."""


def peer_python(folder: Path, given: Path | None = None) -> Path:
    """The interpreter that has the peer, as an absolute path: the given one, which is a path from this folder
    or a command, or that of `folder`, which is made if need be.

    Raises PeerMissing.
    """
    if given is not None:
        # Before anything runs in another folder. Not resolved: an environment's python is a link, and what it
        # points to does not have the environment's packages.
        given = Path(given if given.exists() else shutil.which(given) or given).absolute()
        if (found := _found(given)) != VERSION:
            raise PeerMissing(
                f"{given} has {PACKAGE} {found}, expected {VERSION}; name one that has, or none"
            )
        return given
    python = folder.absolute() / "bin/python"
    if _found(python) != VERSION:
        print(f"installing {PACKAGE} {VERSION} into {folder}", file=sys.stderr, flush=True)
        _install(folder, python)
    return python


def _install(folder: Path, python: Path) -> None:
    # Half of one, of a run that was ended meanwhile, is none.
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    try:
        subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=True, timeout=_INSTALL_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        raise PeerMissing(
            f"{PACKAGE}=={VERSION} cannot be installed into {folder}: {error}; connect to a package index, "
            "or name a Python that has it: make bench PEER_PYTHON=/path/to/python"
        ) from error
    if (found := _found(python)) != VERSION:
        raise PeerMissing(
            f"{folder} has {PACKAGE} {found} after installing {VERSION}; remove the folder, try again"
        )


def _found(python: Path) -> str | None:
    """The peer's version there; None where there is none that can be imported."""
    try:
        said = subprocess.run(
            [str(python), "-c", _CHECK],
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            cwd=python.parent,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() if said.returncode == 0 else None

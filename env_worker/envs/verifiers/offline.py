"""Starts verifiers' bundled chat program with this interpreter, so that a rollout needs no network for it.

The `null` and `bash` harnesses are a script whose requirements uv installs at the first rollout, from the
network even where UV_OFFLINE is set. This interpreter has them as a rule, since verifiers needs the same.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from env_worker.envs.verifiers.harness import subprocess_module

logger = logging.getLogger(__name__)

_METADATA: Final = re.compile(r"(?m)^# /// script\n((?:#.*\n)+?)# ///$")
_PACKAGE: Final = re.compile(r"[A-Za-z0-9._-]+")


def preseed() -> bool:
    """Do so, for all rollouts of this process. Else say in the log why not: verifiers goes its own way then.
    Whether it was done."""
    try:
        source: str = importlib.import_module("verifiers.v1.harnesses.utils.launch").CHAT_PROGRAM_SOURCE
        if missing := [name for name in _requirements(source) if importlib.util.find_spec(name) is None]:
            raise ImportError(f"its packages {', '.join(missing)} are not installed here")
        scripts, interpreters = _tables(subprocess_module())
        path = Path(scripts, f"{hashlib.sha256(source.encode()).hexdigest()}.py")
        _write(path, source.encode())
        interpreters[str(path)] = sys.executable
    except Exception as error:  # it is not ours, and serving does not depend on it
        logger.warning(
            "verifiers' chat program is not started with this interpreter (%s: %s); uv prepares it at the "
            "first rollout, which needs a network",
            type(error).__name__, error,
        )  # fmt: skip
        return False
    return True


def _requirements(source: str) -> list[str]:
    """The modules of the packages that a script says it needs (PEP 723)."""
    found = _METADATA.search(source)
    if found is None:
        return []
    metadata = tomllib.loads(re.sub(r"(?m)^# ?", "", found[1]))
    names = [_PACKAGE.match(text) for text in metadata.get("dependencies", ())]
    return [name[0].replace("-", "_") for name in names if name is not None]


def _tables(module: Any) -> tuple[str, dict[str, str]]:
    """Where scripts lie, and with which interpreter each is started."""
    if hasattr(module, "SubprocessBackend"):
        return module.SubprocessBackend.scripts_dir, module._UV_INTERPRETERS
    return module.SubprocessRuntime.scripts_dir, module.SubprocessRuntime._interpreters  # 0.4.0


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    part.write_bytes(data)
    part.replace(path)

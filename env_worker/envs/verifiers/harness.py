"""What verifiers starts on this host: marked, in a folder of its own, so that none of it outlives its worker.

verifiers has no means for that, so some of its names are exchanged, each by itself: where a version has them
no longer, the log says what is lost, and environments are served all the same.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import secrets
import threading
import uuid
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from env_worker.envs.verifiers.leavings import remove
from env_worker.envs.verifiers.processes import MARK_VARIABLE, kill, marked
from env_worker.envs.verifiers.reaping import Reaper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

logger = logging.getLogger(__name__)

PORT_FILES: Final = "/tmp/vf-port-*"
"""Files in which verifiers' tool servers say their port. Nobody removes them."""


_run: Final[ContextVar[str]] = ContextVar("verifiers_run", default="")
"""The id of the run that something is started for; "" if it is for none."""


class Harness:
    """All that the verifiers environments of this process start. One for a process: see `harness`."""

    def __init__(self) -> None:
        self.mark: Final = secrets.token_hex(8)
        os.environ[MARK_VARIABLE] = self.mark
        self._folder: Path | None = None
        self._hidden: Final[set[str]] = set()
        self._leaving: Final = threading.Lock()
        self._environments = 0
        self._orderly = True
        for change, lost in (
            (self._mark_processes, "what leaves a run's session may outlive it, and sees engines' keys"),
            (self._move_folders, "a worker that is killed leaves work directories behind"),
            (self._name_port_files, f"{PORT_FILES} files stay"),
        ):
            try:
                change()
            except (ImportError, AttributeError) as error:
                logger.warning("this version of verifiers is not known here (%s): %s", error, lost)
        self._reaper: Final = Reaper(self.mark, self._folder, f"{PORT_FILES}{self.mark}*")

    def prepare(self, key_variables: Iterable[str]) -> None:
        """Before anything is started, for a run or for all of them: have it end with this process, and keep
        what these variables hold from it. Tools have no business with engines' keys."""
        self._hidden.update(key_variables)
        self._reaper.start()

    @contextlib.contextmanager
    def run(self) -> Iterator[str]:
        """What is started in here, and by the tasks that are, belongs to one run, whose id it gives."""
        run = secrets.token_hex(8)
        token = _run.set(run)
        try:
            yield run
        finally:
            _run.reset(token)

    def sweep(self, run: str) -> None:
        """Kill what of a run has escaped from its runtimes, and remove its files. For a thread."""
        if killed := kill(marked(self.mark, run)):
            logger.warning(
                "%d processes that a run left behind were killed: %s", len(killed), ", ".join(killed)
            )
        remove(None, f"{PORT_FILES}{self.mark}{run}*")

    def enter(self) -> None:
        """One more environment uses it."""
        self._environments += 1

    def leave(self, *, orderly: bool) -> None:
        """One of them does no more; after the last nothing is left of what they have started. Not `orderly`:
        something of it may be running yet, and is killed. Thread-safe."""
        with self._leaving:
            self._environments -= 1
            self._orderly = self._orderly and orderly
            if self._environments:
                return
            if self._orderly:
                self._reaper.end()
                remove(self._folder, f"{PORT_FILES}{self.mark}*")
            else:
                self._reaper.reap()
            self._orderly = True

    def _mark_processes(self) -> None:
        runtime: Any = importlib.import_module("verifiers.v1.runtimes").Runtime
        original: Callable[[Any, dict[str, str]], dict[str, str]] = runtime.process_env

        @functools.wraps(original)
        def process_env(self_: Any, env: dict[str, str]) -> dict[str, str]:
            found = dict(original(self_, env))
            if run := _run.get():
                found[MARK_VARIABLE] = f"{self.mark}/{run}"
            for name in self._hidden:
                found.setdefault(name, "")
            return found

        runtime.process_env = process_env

    def _move_folders(self) -> None:
        module = subprocess_module()
        folder: Path = module.CACHE_DIR / "envtrio" / self.mark
        module.CACHE_DIR = self._folder = folder

    def _name_port_files(self) -> None:
        launch: Any = importlib.import_module("verifiers.v1.mcp.launch")
        launch.uuid.uuid4  # noqa: B018  # it is there
        launch.uuid = SimpleNamespace(uuid4=self._named)

    def _named(self) -> SimpleNamespace:
        # What is random comes first: of some names only the beginning is used.
        return SimpleNamespace(hex=f"{uuid.uuid4().hex}{self.mark}{_run.get()}")


@functools.cache
def harness() -> Harness:
    """That of this process. It changes what the package has loaded, so load that first."""
    return Harness()


def subprocess_module() -> Any:
    """Where verifiers has its runtime on this host. ImportError where it has it no longer."""
    try:
        return importlib.import_module("verifiers.v1.runtimes.backends.subprocess")
    except ImportError:  # 0.4.0
        return importlib.import_module("verifiers.v1.runtimes.subprocess")

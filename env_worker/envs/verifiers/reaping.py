"""The process that ends what a worker has started, when the worker is killed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from env_worker.envs.verifiers.processes import MARK_VARIABLE
from env_worker.leftovers import MARK_VARIABLE as WORKER_MARK_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

GOODBYE: Final = b"."
"""Said by a worker that has ended everything itself."""
_END_SECONDS: Final = 2.0
_LEAST_SECONDS: Final = 1.0
"""How long one stays in its place at least, be it dead."""
_MODULE: Final = "env_worker.envs.verifiers.reaper"
# The worker's own path, because its modules may have been found where no other interpreter would look.
_BOOT: Final = (
    f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {_MODULE} import main; main(sys.argv[3:])"
)


class Reaper:
    """Holds the write end of a pipe, whose other end a process of its own waits at: it closes with the
    worker, however that ends. Its session is its own, and it carries neither the harness' mark nor the
    worker's, so nobody who ends those ends it. If somebody does, another takes its place. Thread-safe.

    Args:
        mark: of the processes that it kills then.
        folder: what it removes then, or None.
        files: pattern of files that it removes.
    """

    def __init__(self, mark: str, folder: Path | None, files: str) -> None:
        self._arguments: Final = (mark, "" if folder is None else str(folder), files)
        self._lock: Final = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs. It costs some milliseconds, and 20 MB."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._replace()

    def end(self) -> None:
        """Let it go: there is nothing to reap."""
        self._close(GOODBYE)

    def reap(self) -> None:
        """Have it end everything now, and wait for that for a while."""
        self._close(b"")

    def _replace(self) -> None:
        _hang_up(self._process)
        self._process = _started(self._arguments)
        if self._process is not None:
            watching = threading.Thread(
                target=self._watch, args=(self._process,), name="verifiers-reaper", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # no thread to be had: the next run looks after it
                watching.start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for its end, and put another in its place where that was not wanted."""
        began = time.monotonic()
        process.wait()
        # At once, but where none can stay: not again and again.
        time.sleep(max(0.0, began + _LEAST_SECONDS - time.monotonic()))
        with self._lock:
            if self._process is not process:
                return
            logger.warning(
                "process %d, which ends what is left when this worker is killed, has ended with %d; another "
                "takes its place",
                process.pid, process.returncode,
            )  # fmt: skip
            self._replace()

    def _close(self, said: bytes) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.write(said)
            process.stdin.flush()
        _hang_up(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)


def _started(arguments: tuple[str, str, str]) -> subprocess.Popen[bytes] | None:
    unmarked = {
        name: value for name, value in os.environ.items() if name not in (MARK_VARIABLE, WORKER_MARK_VARIABLE)
    }
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    # It inherits what is blocked: whoever ends a whole service by a signal means the worker.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        return subprocess.Popen(
            (sys.executable, "-P", "-c", _BOOT, path, _MODULE, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=unmarked,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        logger.warning(
            "no process can be started that ends what is left when this worker is killed: %s", error
        )
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _hang_up(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()

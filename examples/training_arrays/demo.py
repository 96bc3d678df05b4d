"""Worker, orchestrator and trainer as three processes: `python examples/training_arrays/demo.py [EPISODES]`.

The orchestrator's output is the trainer's input. The worker ends when this does, however it does: its
standard input closes then.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
WORKER = [
    *("-m", "env_worker", "serve", "--env", "synthetic", "--log-level", "warning", "--exit-with-stdin"),
    *("--hook", "examples.training_arrays.checked_keeper:CheckedKeeper"),
    *("--drain-seconds", "0", "--linger-seconds", "0"),
]
STOP_SECONDS = 20.0


@contextmanager
def running(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A Python process, which has ended when this is left. Its session is its own: Ctrl-C is not for it."""
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, text=True, cwd=HERE.parents[1], start_new_session=True, **options
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def address_of(worker: subprocess.Popen[str]) -> str:
    """The address that the worker listens on. SystemExit if it ends before that."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith("listening on "):
            return line.removeprefix("listening on ").strip()
    raise SystemExit(f"the worker ended with exit code {worker.wait()} before it listened")


def main(episodes: str = "8") -> int:
    """0 if everything arrived as it was kept, and nothing of it was left in the worker."""
    pipe = subprocess.PIPE
    with running(*WORKER, stdin=pipe, stdout=pipe) as worker:
        orchestrate = (str(HERE / "orchestrator.py"), address_of(worker), episodes)
        with (
            running(*orchestrate, stdout=pipe) as orchestrator,
            running(str(HERE / "trainer.py"), stdin=orchestrator.stdout) as trainer,
        ):
            assert orchestrator.stdout is not None
            orchestrator.stdout.close()  # only the trainer reads it
            print("worker, orchestrator and trainer are running", flush=True)
            codes = [trainer.wait(), orchestrator.wait()]
    codes.append(worker.returncode)
    for name, code in zip(("trainer", "orchestrator", "worker"), codes, strict=True):
        if code:
            held = ": arrays that nobody had released" if name == "worker" and code == 4 else ""
            print(f"the {name} ended with exit code {code}{held}")
    if not any(codes):
        print("all three have ended, and nothing was left in the worker")
    return 1 if any(codes) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main(*sys.argv[1:2]))
    except KeyboardInterrupt:
        sys.exit(130)

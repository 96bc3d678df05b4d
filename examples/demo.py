"""The main job, `make run`: a broker, two workers, and 32 reasoning tasks of several kinds.

Everything runs on this machine and ends with it, also on Ctrl-C. The model is the built-in simulation: it is
right at a seeded rate, so the rewards say nothing about any real model.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
TASKS = HERE / "tasks" / "reasoning_gym.jsonl"
OUT = HERE.parent / "out"
EPISODES = OUT / "episodes.jsonl"
POOL_LOG = OUT / "pool.log"
STOP_SECONDS = 20.0

# Linger is for replies that can still be taken back and arrays that a trainer has not fetched. Here nobody
# will do either once the client has ended.
BROKER = [
    *("-m", "env_broker", "serve", "--listen", "127.0.0.1:0", "--workers", "2", "--max-concurrent", "8"),
    *("--env", "reasoning-gym", "--hook", "examples.counting_hook:hook", "--log-level", "warning"),
    *("--drain-seconds", "0", "--linger-seconds", "0"),
]


@contextmanager
def running(
    arguments: list[str], ended_by: signal.Signals, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has ended when this is left, whatever happens."""
    early: list[int] = []
    # An interrupt between the start of the process and the `try` would leave it behind.
    handle(lambda caught, _: early.append(caught))
    process = subprocess.Popen([sys.executable, *arguments], text=True, cwd=HERE.parent, **options)
    try:
        handle(signal.default_int_handler)
        if early:
            raise KeyboardInterrupt
        yield process
    finally:
        handle(signal.SIG_IGN)
        if process.poll() is None:
            process.send_signal(ended_by)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        handle(signal.default_int_handler)


def handle(handler: Any) -> None:
    """Let SIGINT and SIGTERM do that: a SIGTERM ends everything as Ctrl-C does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


@contextmanager
def pool() -> Iterator[str]:
    """A broker and two workers, at the address that it yields.

    They have a session of their own, so that Ctrl-C does not reach them before the client. Workers end with
    their broker, however it ends.
    """
    with (
        POOL_LOG.open("w") as log,
        running(BROKER, signal.SIGTERM, stdout=subprocess.PIPE, stderr=log, start_new_session=True) as broker,
    ):
        yield address_of(broker)


def address_of(broker: subprocess.Popen[str]) -> str:
    """The address that the broker listens on. SystemExit with its log if it ends before that."""
    assert broker.stdout is not None
    for line in broker.stdout:
        if line.startswith("listening on "):
            return line.removeprefix("listening on ").strip()
    code = broker.wait()
    raise SystemExit(f"{POOL_LOG.read_text()}the broker ended with exit code {code} before it listened")


def run_client(address: str) -> int:
    """Run the tasks; the client's exit code. On Ctrl-C it cancels its runs before it ends."""
    # The client overwrites nothing, and another demo may run beside this one.
    written = OUT / f"episodes-{os.getpid()}.jsonl"
    written.unlink(missing_ok=True)
    arguments = [
        *("-m", "env_client", "run", "--broker", address, "--env", "reasoning-gym"),
        *("--tasks", str(TASKS), "--count", "32", "--concurrency", "16", "--out", str(written)),
    ]
    try:
        with running(arguments, signal.SIGINT) as client:
            return client.wait()
    finally:
        if written.exists():
            written.replace(EPISODES)


def main() -> int:
    OUT.mkdir(exist_ok=True)
    try:
        with pool() as address:
            print(f"a broker listens on {address}, two workers are starting", flush=True)
            code = run_client(address)
        print(
            f"episodes: {os.path.relpath(EPISODES)}, log of broker and workers: {os.path.relpath(POOL_LOG)}"
        )
        return code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    handle(signal.default_int_handler)
    sys.exit(main())

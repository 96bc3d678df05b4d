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
from typing import TYPE_CHECKING

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
def pool() -> Iterator[str]:
    """A broker and two workers, at the address that it yields; ended whatever happens.

    They have a session of their own, so that Ctrl-C does not reach them before the client.
    """
    # A Ctrl-C between the start of the process and the `try` would leave it behind.
    early: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: early.append(caught))
    with POOL_LOG.open("w") as log:
        broker = subprocess.Popen(
            [sys.executable, *BROKER],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=HERE.parent,
            start_new_session=True,
        )
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        if early:
            raise KeyboardInterrupt
        yield address_of(broker)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stop(broker)


def address_of(broker: subprocess.Popen[str]) -> str:
    """The address that the broker listens on. SystemExit with its log if it ends before that."""
    assert broker.stdout is not None
    for line in broker.stdout:
        if line.startswith("listening on "):
            return line.removeprefix("listening on ").strip()
    code = broker.wait()
    raise SystemExit(f"{POOL_LOG.read_text()}the broker ended with exit code {code} before it listened")


def stop(broker: subprocess.Popen[str]) -> None:
    """End the pool by its process id. A broker that does not end in time is killed; its workers follow it."""
    broker.terminate()
    try:
        broker.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        broker.kill()
        broker.wait()


def run_client(address: str) -> int:
    """Run the tasks; the client's exit code. On Ctrl-C it cancels its runs before it ends."""
    client = subprocess.Popen(
        [
            *(sys.executable, "-m", "env_client", "run", "--broker", address, "--env", "reasoning-gym"),
            *("--tasks", str(TASKS), "--count", "32", "--concurrency", "16", "--out", str(EPISODES)),
        ],
        cwd=HERE.parent,
    )
    try:
        return client.wait()
    except KeyboardInterrupt:
        client.send_signal(signal.SIGINT)  # from a terminal it has got it already
        client.wait(STOP_SECONDS)
        raise


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
    # A SIGTERM ends everything as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())

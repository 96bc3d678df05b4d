"""The main job, `make run`: a broker, two workers, and 32 reasoning tasks of several kinds.

Everything runs on this machine and ends with it, also on Ctrl-C. The model is the built-in simulation: it is
right at a seeded rate, so the rewards say nothing about any real model.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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


def start_broker() -> tuple[subprocess.Popen[str], str]:
    """Start the pool in a session of its own, so that Ctrl-C reaches the client alone. Return its address."""
    with POOL_LOG.open("w") as log:
        broker = subprocess.Popen(
            [sys.executable, *BROKER],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=HERE.parent,
            start_new_session=True,
        )
    assert broker.stdout is not None
    for line in broker.stdout:
        if line.startswith("listening on "):
            return broker, line.removeprefix("listening on ").strip()
    raise SystemExit(
        f"{POOL_LOG.read_text()}the broker ended with exit code {broker.wait()} before it listened"
    )


def stop_broker(broker: subprocess.Popen[str]) -> None:
    """End the pool by its process id. A broker that does not end in time is killed; its workers follow it."""
    if broker.poll() is None:
        broker.send_signal(signal.SIGTERM)
        try:
            broker.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()


def main() -> int:
    OUT.mkdir(exist_ok=True)
    broker, address = start_broker()
    client: subprocess.Popen[bytes] | None = None
    try:
        print(f"a broker listens on {address}, two workers are starting", flush=True)
        client = subprocess.Popen(
            [
                *(sys.executable, "-m", "env_client", "run", "--broker", address, "--env", "reasoning-gym"),
                *("--tasks", str(TASKS), "--count", "32", "--concurrency", "16", "--out", str(EPISODES)),
            ],
            cwd=HERE.parent,
        )
        code = client.wait()
        print(
            f"episodes: {os.path.relpath(EPISODES)}, log of broker and workers: {os.path.relpath(POOL_LOG)}"
        )
        return code
    except KeyboardInterrupt:
        # The terminal sent the signal to the client too; it cancels its runs and ends.
        if client is not None:
            client.wait(STOP_SECONDS)
        return 130
    finally:
        stop_broker(broker)


if __name__ == "__main__":
    # A SIGTERM ends everything as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())

"""Environments that end the start of a worker which asks for them.

Name them `lucky=tests.helpers.failing_starts:NAME`:

    Raises          looking for it raises
    RaisesInSlot1   the same, in the local worker of slot 1; in others it is a LuckyEnvironment
    Exits           the process exits at once, without a word
    Killed          the process is killed
    LuckyEnvironment
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.base import Context


class LuckyEnvironment:
    """One that gets so far."""

    name = "lucky"
    description = "does nothing, for tests"

    def validate(self, task: Mapping[str, Any]) -> None:
        """Anything goes."""

    async def run(self, context: Context) -> None:
        context.new_trace(model="simulated")


def __getattr__(name: str) -> type[LuckyEnvironment]:
    if name == "Exits":
        os._exit(9)
    if name == "Killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "Raises" or (name == "RaisesInSlot1" and _slot() == "1"):
        raise RuntimeError("the licence server does not answer")
    if name == "RaisesInSlot1":
        return LuckyEnvironment
    raise AttributeError(name)


def _slot() -> str:
    """The worker has taken it out of its variables: it is among those that it was started with."""
    return psutil.Process().environ()["ENV_WORKER_LOCAL_SLOT"].partition(":")[0]

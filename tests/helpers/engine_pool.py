"""A broker with one worker, as real processes, whose runs ask scripted engines and keep their arrays."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from env_client import ArrayClient, EnvClient
from env_client.request import Endpoint
from tests.helpers.pool_watch import states, watcher
from tests.helpers.pools import QUICK_STOP, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from envtrio.v1.episode_pb2 import Episode

    from tests.engine import ScriptedEngine
    from tests.helpers.pool_watch import PoolWatcher
    from tests.helpers.pools import ServerProcess

ENVIRONMENT = "engine=tests.helpers.engine_environment:EngineEnvironment"
HOOK = "array-keeper"
VARIABLES = {
    "ENV_WORKER_ALLOW_ENDPOINT": "http://127.0.0.1:*/v1",
    "ENV_WORKER_MODEL": "scripted",
    "ENV_WORKER_MODEL_ARRAYS": "routed_experts,sampling_mask,top_logprobs",
    "ENV_WORKER_MODEL_ROUTING_SHAPE": "4x2",
    "ENV_WORKER_MODEL_EXPERTS": "64",
    "ENV_WORKER_MODEL_RETRIES": "2",
    "ENV_WORKER_MODEL_LOGPROBS_MODE": "raw",
}
"""Settings of the worker for models, of which the broker has no flags."""
WIDTH = 3
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_logprobs_count": WIDTH}
"""Three candidates of each token; the others are what vLLM wants to be asked for where it returns masks."""
SECONDS = 30.0


@dataclass
class EnginePool:
    """One of them: the broker, a client of it, a trainer's, and who watches it."""

    broker: ServerProcess
    client: EnvClient
    trainer: ArrayClient
    watcher: PoolWatcher

    async def play(
        self, engine: ScriptedEngine, dialect: str, task: dict[str, Any], **arguments: Any
    ) -> Episode:
        """The episode of this task whose model is `engine`."""
        return await self.client.run(task, endpoint=Endpoint(engine.url, dialect), **arguments)

    async def idle(self) -> None:
        """Return when the worker has no run."""
        watch = self.watcher.watch()
        await watch.until(lambda view: not any(worker.running for worker in view.workers))
        watch.cancel()


def task_of(*turns: Sequence[Any], **keys: Any) -> dict[str, Any]:
    """A task of the environment: each turn's messages, and its other keys."""
    return {"turns": [list(turn) for turn in turns], **keys}


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


@asynccontextmanager
async def engine_pool(*flags: str, **variables: str) -> AsyncIterator[EnginePool]:
    """With these flags of the broker, and variables beside `VARIABLES`. Runs sample by `SAMPLING` unless they
    say otherwise."""
    arguments = ("--env", ENVIRONMENT, "--hook", HOOK, "--workers", "1", *QUICK_STOP, *flags)
    async with (
        serving("env_broker", *arguments, variables={**VARIABLES, **variables}) as broker,
        watcher(broker.address) as watching,
        EnvClient(broker.address, env="engine", sampling=SAMPLING, timeout=SECONDS) as client,
        ArrayClient() as trainer,
    ):
        await watching.watch().until(lambda view: states(view) == ["READY"])
        yield EnginePool(broker, client, trainer, watching)

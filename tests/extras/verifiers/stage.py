"""An engine, a broker, and a worker that serves verifiers environments, each a process but the engine."""

from __future__ import annotations

import json
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil

from env_client import EnvClient
from tests.extras.verifiers.engine import EXPERTS, serving_engine
from tests.extras.verifiers.tokenizer import make_tokenizer
from tests.helpers.pool_watch import states, watcher
from tests.helpers.pools import QUICK_STOP, ROOT, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.extras.verifiers.engine import FakeEngine
    from tests.helpers.pool_watch import PoolWatcher
    from tests.helpers.pools import ServerProcess

SECONDS: Final = 150.0
HERE: Final = {"type": "subprocess"}
AGENT: Final = {"harness": {"id": "null"}, "runtime": HERE}
CALC: Final = {"taskset": {"id": "vfdemo-calc"}, "agent": AGENT}
PLAIN: Final = {"taskset": {"id": "vfdemo-plain"}, "agent": AGENT}
SHARED: Final = {"taskset": {"id": "vfdemo-shared"}, "agent": AGENT}
KEY: Final = "sk-0123456789abcdef"
VARIABLES: Final = {
    # An environment that was not installed is found by the worker and by its tool servers by PYTHONPATH.
    "PYTHONPATH": os.pathsep.join(
        map(str, (ROOT, ROOT / "protos", ROOT / "tests" / "extras" / "verifiers" / "tasksets"))
    ),
    "HF_HUB_OFFLINE": "1",
    # As a key comes from a file.
    "ENGINE_TOKEN": f"{KEY}\n",
    "OTHER_TOKEN": "of another engine",
    "VFDEMO_SHOWN": "ENGINE_TOKEN OTHER_TOKEN HF_HUB_OFFLINE",
}


def train(env: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration with the train client."""
    renderer = {"name": "qwen3", "enable_thinking": False}
    return {
        "env": env,
        "client": {"type": "train", "renderer": renderer, "renderer_model_name": str(folder / "tokenizer")},
    }


def environments(folder: Path) -> dict[str, dict[str, Any]]:
    """Configurations, by the names under which they are served."""
    assistant = {"id": "vfdemo-plain"}
    hub = train(PLAIN, folder)
    hub["client"]["renderer_model_name"] = "no-such/tokenizer"
    return {
        "calc": CALC,
        "calc-train": train(CALC, folder),
        "plain": PLAIN,
        "plain-train": train(PLAIN, folder),
        "hub-train": hub,
        "shared": SHARED,
        "bash": {**PLAIN, "agent": {"harness": {"id": "bash"}, "runtime": HERE}},
        "user-sim": {"id": "user-sim", "taskset": assistant, "assistant": AGENT, "user": {"runtime": HERE}},
        "best-of-n": {**PLAIN, "id": "best-of-n", "n": 2, "max_concurrent_agents": None},
        "agent-retries": {**PLAIN, "agent": {**AGENT, "retries": {"max_retries": 1}}},
        "episode-retries": {**PLAIN, "retries": {"max_retries": 1}},
    }


@dataclass
class Stage:
    """What runs."""

    engine: FakeEngine
    worker: ServerProcess
    broker: ServerProcess | None
    client: EnvClient

    def watching(self) -> AbstractAsyncContextManager[PoolWatcher]:
        """Watches the broker's pool."""
        assert self.broker is not None
        return watcher(self.broker.address)


@asynccontextmanager
async def stage(
    folder: Path, *names: str, broker: bool = True, variables: Mapping[str, str] | None = None
) -> AsyncIterator[Stage]:
    """Serve the environments of those names, or all."""
    configurations = environments(folder)
    flags = []
    for name in names or configurations:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(configurations[name]))
        flags += ["--env", f"verifiers:{path}"]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(serving_engine(make_tokenizer(folder / "tokenizer")))
        flags += ["--model-url", engine.url, "--model", "m", "--hook", "env_worker:array_keeper"]
        flags += ["--model-key-variable", "ENGINE_TOKEN", "--allow-key-variable", "OTHER_TOKEN"]
        flags += ["--model-arrays", "routed_experts,sampling_mask", "--model-experts", str(EXPERTS)]
        pool = None
        if broker:
            pool = await stack.enter_async_context(serving("env_broker", variables=VARIABLES))
            flags += ["--broker", pool.address]
        worker = await stack.enter_async_context(
            serving("env_worker", *flags, *QUICK_STOP, variables={**VARIABLES, **(variables or {})})
        )
        if pool is not None:
            async with watcher(pool.address) as watching:
                await watching.watch().until(lambda view: set(states(view)) == {"READY"})
        address = worker.address if pool is None else pool.address
        client = await stack.enter_async_context(EnvClient(address, timeout=SECONDS))
        yield Stage(engine, worker, pool, client)


def mark_of(worker: ServerProcess) -> str:
    """The mark of what a worker's harnesses have started: the first part of what the file names begin with
    that it is told to remove."""
    for process in psutil.Process(worker.pid).children():
        command = process.cmdline()
        if "env_worker.envs.verifiers.reaper" in command:
            return command[command.index("env_worker.envs.verifiers.reaper") + 1]
    raise AssertionError("the worker has started no reaper")


def processes(mark: str) -> list[psutil.Process]:
    """What carries that mark, and is no zombie."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("ENVTRIO_HARNESS", "").startswith(mark)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def sleeping(mark: str) -> list[str]:
    """The commands among these that only sleep."""
    return sorted(" ".join(one.cmdline()) for one in processes(mark) if one.name() == "sleep")


def wait_until(true: Any, what: str, seconds: float = 30.0) -> None:
    """Poll: processes end when the kernel comes to it, and tell nobody who is not their parent."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)

"""Environments of the verifiers package, as one of ours (extra `[verifiers]`)."""

from __future__ import annotations

import asyncio
import atexit
import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.verifiers import endpoint
from env_worker.envs.verifiers.harness import harness
from env_worker.envs.verifiers.load import load
from env_worker.envs.verifiers.mirror import EpisodeMirror
from env_worker.envs.verifiers.offline import preseed
from env_worker.envs.verifiers.serving import Serving
from env_worker.envs.verifiers.settings import read_settings

if TYPE_CHECKING:
    from env_worker.envs.base import Context
    from env_worker.model.engine import Engine

logger = logging.getLogger(__name__)


class VerifiersEnvironment:
    """Plays an installed verifiers v1 environment, with its own agents, harnesses, tools and rewards.

    Task: the JSON of a task's data (`task.data.model_dump(mode="json")`), or `{"index": n}` for the n-th of
    the taskset. Its traces become ours as they grow: see `EpisodeMirror`. verifiers asks the engine with a
    client of its own, so a run needs an endpoint. A run that is cancelled ends its rollout and what that has
    started.

    Args:
        argument: path of a JSON or TOML file (docs/verifiers.md), or the id of an installed environment.

    Raises ImportError when the package is missing, ValueError naming file and field when it cannot be served.
    """

    def __init__(self, argument: str = "") -> None:
        settings = read_settings(argument)
        self._settings: Final = settings
        self._loaded: Final = load(settings)
        self.name: Final = settings.name
        """That of the file without its ending, or the id."""
        self.description: Final = self._loaded.title
        self._harness: Final = harness()
        self._harness.enter()
        if settings.preseed:
            preseed()
        self._serving: Final = Serving(self._loaded.env.serving)
        self._gone = False
        atexit.register(self.let_go)  # where nobody calls it: in a process that plays a single run
        self._gate: Final = None if settings.concurrency is None else asyncio.Semaphore(settings.concurrency)

    async def run(self, context: Context) -> None:
        """See `Environment.run`. InvalidTaskError also where the run has no engine."""
        engine = context.engine
        if engine is None:
            raise InvalidTaskError(
                f"environment {self.name!r} asks an engine itself, and cannot be played with the simulated "
                "model: give the run an endpoint, or start the worker with --model-url"
            )
        _ = engine.api_key  # said here, because verifiers would go on without
        task = await self._loaded.tasks.task(context.task)
        model = self._model(engine, context)
        async with self._serving.run():
            with self._harness.run(engine.key_variable) as run_id:
                await self._play(context, engine, model, task, run_id)

    def let_go(self, seconds: float = 1.0) -> None:
        """Leave what the environment serves, when its runs have ended, or after `seconds`; and end what its
        harnesses have left. For another thread than that of the environments' loop, at the worker's end.
        Again: changes nothing."""
        if self._gone:
            return
        self._gone = True
        atexit.unregister(self.let_go)
        if not (left := self._serving.close(seconds)):
            logger.warning("environment %s was not left in time; what it has started is killed", self.name)
        self._harness.leave(orderly=left)

    async def _play(self, context: Context, engine: Engine, model: Any, task: Any, run_id: str) -> None:
        loaded = self._loaded
        (slot,) = loaded.env.slots(task)
        mirror = EpisodeMirror(
            context.episode,
            lambda: slot.traces,  # read anew each time: another attempt has another list
            model=engine.model,
            no_heads=endpoint.no_heads(
                context.sampling, self._settings, takes_heads=loaded.takes_heads, version=loaded.version
            ),
        )
        try:
            episode = await loaded.env.run_slot(slot, model, self._gate, on_trace=mirror.minted)
        except BaseException:
            mirror.stop()
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(self._harness.sweep, run_id))
        mirror.finish(episode)

    def _model(self, engine: Engine, context: Context) -> Any:
        vf, settings = self._loaded.vf, self._settings
        kind = vf.TrainClientConfig if settings.client_type == "train" else vf.EvalClientConfig
        return vf.ModelContext(
            model=engine.model,
            client=kind(**endpoint.client_config(engine, settings)),
            sampling=vf.SamplingConfig(**endpoint.sampling_config(context.sampling, settings)),
        )

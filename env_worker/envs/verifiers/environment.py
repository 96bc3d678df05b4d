"""Environments of the verifiers package, as one of ours (extra `[verifiers]`)."""

from __future__ import annotations

import asyncio
import atexit
import logging
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.verifiers import endpoint
from env_worker.envs.verifiers.aborts import refuse_aborted
from env_worker.envs.verifiers.asked import Asked, missing_arrays
from env_worker.envs.verifiers.harness import harness
from env_worker.envs.verifiers.large import refuse_large
from env_worker.envs.verifiers.load import load
from env_worker.envs.verifiers.mirror import EpisodeMirror
from env_worker.envs.verifiers.offline import preseed
from env_worker.envs.verifiers.serving import Serving
from env_worker.envs.verifiers.settings import read_settings
from env_worker.envs.verifiers.tokenizer import name_the_tokenizer
from env_worker.model.dialects.base import EngineOptions

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
        refuse_aborted()
        refuse_large()
        name_the_tokenizer()
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
        model = self._model(engine, context)
        task = await self._loaded.tasks.task(context.task)
        # Before anything is served: that starts tools too.
        self._harness.prepare({*getattr(context.model, "key_variables", ()), *endpoint.key_variables(engine)})
        async with self._serving.run():
            with self._harness.run() as run_id:
                await self._play(context, self._asked(engine, context), model, task, run_id)

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

    async def _play(self, context: Context, asked: Asked, model: Any, task: Any, run_id: str) -> None:
        env = self._loaded.env
        (slot,) = env.slots(task)
        # Its traces are read anew each time: another attempt has another list.
        mirror = EpisodeMirror(context.episode, lambda: slot.traces, asked)
        try:
            episode = await env.run_slot(slot, model, self._gate, on_trace=mirror.minted)
        except BaseException:
            mirror.stop()
            raise
        finally:
            await asyncio.shield(asyncio.to_thread(self._harness.sweep, run_id))
        mirror.finish(episode)

    def _asked(self, engine: Engine, context: Context) -> Asked:
        options: EngineOptions = getattr(context.model, "options", None) or EngineOptions()
        loaded = self._loaded
        missing = missing_arrays(
            context.sampling,
            self._settings,
            options,
            takes_heads=loaded.takes_heads,
            version=loaded.version,
        )
        return Asked(engine, missing, options)

    def _model(self, engine: Engine, context: Context) -> Any:
        vf, settings = self._loaded.vf, self._settings
        kind = vf.TrainClientConfig if settings.client_type == "train" else vf.EvalClientConfig
        return vf.ModelContext(
            model=engine.model,
            client=kind(**endpoint.client_config(engine, settings)),
            sampling=vf.SamplingConfig(**endpoint.sampling_config(context.sampling, settings)),
        )

"""Loads an environment of the verifiers package. Whoever imports this imports nothing of it yet."""

from __future__ import annotations

import contextlib
import importlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from env_worker.envs.verifiers.tasks import TaskSource
from env_worker.envs.verifiers.validation import said

if TYPE_CHECKING:
    from env_worker.envs.verifiers.settings import VerifiersSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """An environment, and what of the package is needed to play it.

    `vf` is the module `verifiers.v1`; `takes_heads` says whether its nodes have top log-probabilities, which
    those of 0.4.0 have not.
    """

    vf: Any
    env: Any
    tasks: TaskSource
    version: str
    takes_heads: bool

    @property
    def title(self) -> str:
        """For people: the id, and the first line of the taskset's documentation."""
        doc = (type(self.env.taskset).__doc__ or "").strip().partition("\n")[0]
        return f"{self.env.config.env_id} of verifiers {self.version}" + (f": {doc}" if doc else "")


def load(settings: VerifiersSettings) -> Loaded:
    """Load it. It takes some seconds, most of which are the package's imports.

    ImportError if the package is missing, or is older than 0.4; ValueError naming the file and the field, if
    the environment or its configuration will not do.
    """
    version: str = importlib.import_module("verifiers").__version__
    vf: Any = importlib.import_module("verifiers.v1")
    graph: Any = importlib.import_module("verifiers.v1.graph")
    loaders: Any = importlib.import_module("verifiers.v1.utils.loaders")
    invalid: type[Exception] = importlib.import_module("pydantic").ValidationError
    source = settings.source
    try:
        config = loaders.resolve_env_config(dict(settings.env))
        env = loaders.load_environment(config)
        kind = vf.TrainClientConfig if settings.client_type == "train" else vf.EvalClientConfig
    except invalid as error:
        raise ValueError(f"{source}: {said(error, 'field')}") from error
    except Exception as error:  # somebody's package, which fails as it likes
        raise ValueError(f"{source}: {type(error).__name__}: {error}") from error
    try:
        kind(**{**settings.client, "base_url": "http://127.0.0.1/v1", "api_key_var": "NONE"})
    except invalid as error:
        raise ValueError(f"{source}: {said(error, 'field', ('client',))}") from error
    task_class = type(env.taskset).task_type()
    tasks = TaskSource(
        env.taskset,
        task_class=task_class,
        data_class=task_class.data_type(),
        config=env.config.taskset.task,
        invalid=invalid,
    )
    _warn_of_runtimes(settings, config)
    _know_the_commit()
    _quiet()
    return Loaded(vf, env, tasks, version, "top_logprobs" in graph.MessageNode.model_fields)


def _warn_of_runtimes(settings: VerifiersSettings, config: Any) -> None:
    """What verifiers takes where nothing is said are sandboxes that somebody has to pay for."""
    with contextlib.suppress(ImportError, AttributeError):
        agents: Any = importlib.import_module("verifiers.v1.configs.agent")
        for name, agent in agents.agent_config_fields(config).items():
            if agent.runtime.type == "prime":
                logger.warning(
                    "%s: agent %r runs in prime's sandboxes, verifiers' default; set %s.runtime to "
                    '{"type": "subprocess"} to run it here',
                    settings.source, name, name,
                )  # fmt: skip


def _know_the_commit() -> None:
    """verifiers asks git for its commit, once, when it makes its first trace: now it holds up no run."""
    with contextlib.suppress(Exception):
        importlib.import_module("verifiers.v1.utils.version").verifiers_commit()


def _quiet() -> None:
    """A line for each request, of the harness to verifiers and of verifiers to the engine, is of no use in a
    worker's log, unless somebody has asked for it."""
    for name in ("aiohttp.access", "httpx"):
        if (noisy := logging.getLogger(name)).level == logging.NOTSET:
            noisy.setLevel(logging.WARNING)

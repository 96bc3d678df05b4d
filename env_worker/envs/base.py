"""What an environment is, and what a run hands to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.domain import Episode, SamplingParams, Trace
    from env_worker.model.base import ModelClient
    from env_worker.model.engine import Engine


@dataclass(frozen=True, slots=True)
class Context:
    """One run, as its environment sees it.

    `task` is the JSON object that the client sent. `deadline` is when the run ends whatever the environment
    does, in seconds of `time.monotonic()`, or None. Whatever is written into `episode` streams by itself.
    """

    request_id: str
    task: Mapping[str, Any]
    sampling: SamplingParams
    model: ModelClient
    episode: Episode
    deadline: float | None = None

    @property
    def engine(self) -> Engine | None:
        """Where the run's model is, for an environment that brings a client of its own; None where it is the
        simulation. What it asks is not limited by the worker's lists, so it keeps to this one."""
        return getattr(self.model, "engine", None)

    def new_trace(
        self, agent: str = "agent", *, trainable: bool = True, model: str = "", trace_id: str | None = None
    ) -> Trace:
        """A new trace of the episode; see `Episode.new_trace`."""
        return self.episode.new_trace(agent, trainable=trainable, model=model, trace_id=trace_id)


@runtime_checkable
class Environment(Protocol):
    """Plays one episode for a task. One instance serves all runs at once, on one event loop.

    An exception raised before the first trace is opened fails the run; later it gives an episode that is not
    ok and carries the error. `InvalidTaskError` before the first trace tells the client that its task is at
    fault.

    An environment may also have

    - `name: str`: the name it is served under, where the command line gives none;
    - `description: str`: one line for people;
    - `validate(task) -> None`: a quick, synchronous check, called before `run`, on the same loop. It raises
      `InvalidTaskError` naming the key, the value and the limit;
    - `let_go(seconds) -> None`: called once in a thread when the worker ends, and waited for so long; not
      where each run has a process of its own.
    """

    async def run(self, context: Context) -> None: ...


async def play(environment: Environment, context: Context) -> None:
    """Check the task if the environment has a check of its own, then run it.

    On the environments' loop, both: a check that blocks or raises whatever it likes must not reach the loop
    that serves the network.
    """
    validate = getattr(environment, "validate", None)
    if validate is not None:
        validate(context.task)
    await environment.run(context)

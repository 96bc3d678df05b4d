"""For the tests of an environment: play it here, with a model whose answers you wrote."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import Call, Episode, EpisodeError, Message, SamplingParams
from env_worker.envs.base import Context, play
from env_worker.model.base import Turn, check_asked, show_asked
from env_worker.model.simulated import SimulatedModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env_worker.domain import Trace
    from env_worker.envs.base import Environment
    from env_worker.model.base import ModelClient

__all__ = ["ScriptedModel", "rehearse", "rehearsed"]

_NAME: Final = "scripted"


class ScriptedModel:
    """Gives these answers one after another: a text, a whole `Message` (with tool calls, say), or an
    exception that is raised. AssertionError when it is asked once more than it has answers.

    `asked` has the messages of each turn, as the environment gave them. Its nodes have no tokens.
    """

    def __init__(self, *answers: str | Message | BaseException) -> None:
        self._answers: Final = list(answers)
        self.asked: Final[list[tuple[Message, ...]]] = []

    @property
    def name(self) -> str:
        return _NAME

    @property
    def simulated(self) -> bool:
        return True

    async def chat(
        self,
        trace: Trace,
        messages: Sequence[Message],
        *,
        parent: int | None = None,
        sampling: SamplingParams | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        reference: str | None = None,
    ) -> Turn:
        """See `ModelClient.chat`."""
        check_asked(messages, parent, sampling)
        if len(self.asked) == len(self._answers):
            raise AssertionError(
                f"the environment asked for turn {len(self.asked) + 1}, but the script has "
                f"{len(self._answers)} answers; add one, or see why it goes on"
            )
        answer = self._answers[len(self.asked)]
        self.asked.append(tuple(messages))
        show_asked(trace, messages, parent, tools)
        started_at = time.time()
        await asyncio.sleep(0)  # others have their turn, as with a model
        if isinstance(answer, BaseException):
            trace.clear_pending()
            trace.add_call(_call(None, started_at, error=EpisodeError.from_exception(answer, "model")))
            raise answer
        message = Message.assistant(answer) if isinstance(answer, str) else answer
        for given in messages:
            parent = trace.add_node(given, parent=parent)
        node = trace.add_node(message, parent=parent, sampled=True)
        finish_reason = "tool_calls" if message.tool_calls else "stop"
        trace.add_call(_call(node, started_at, finish_reason=finish_reason))
        return Turn(node=node, message=message, finish_reason=finish_reason)


async def rehearse(
    environment: Environment,
    task: Mapping[str, Any],
    *,
    model: ModelClient | None = None,
    sampling: SamplingParams | None = None,
    timeout: float | None = 60.0,
) -> Episode:
    """Play one episode as a worker does, and return it finished.

    Without `model` the simulated one answers. What the environment raises after its first trace is in
    `episode.errors`, as in a worker; before it, it is raised here, InvalidTaskError included. TimeoutError
    after `timeout` seconds, when it was cancelled as a worker cancels it; CancelledError likewise.
    """
    if not inspect.iscoroutinefunction(getattr(environment, "run", None)):
        raise TypeError(
            f"{environment!r} is no environment; define: async def run(self, context) -> None, and pass an "
            "instance"
        )
    # By way of JSON, as a task comes: no tuples, no keys that are numbers.
    sent = json.loads(json.dumps(dict(task), allow_nan=False))
    episode = Episode("rehearsal", getattr(environment, "name", type(environment).__name__), sent)
    context = Context(
        "0" * 32,
        sent,
        SamplingParams() if sampling is None else sampling,
        SimulatedModel() if model is None else model,
        episode,
        None if timeout is None else time.monotonic() + timeout,
    )
    try:
        async with asyncio.timeout(timeout) as limit:
            await play(environment, context)
    except Exception as error:
        if not episode.traces or limit.expired():
            raise
        if isinstance(error, AssertionError) and isinstance(model, ScriptedModel):
            raise  # the script's, or the test's own: neither is an outcome of an episode
        episode.add_error(EpisodeError.from_exception(error, phase="environment"))
    episode.finish()
    return episode


def rehearsed(environment: Environment, task: Mapping[str, Any], **options: Any) -> Episode:
    """`rehearse` where there is no event loop."""
    return asyncio.run(rehearse(environment, task, **options))


def _call(
    node: int | None, started_at: float, *, finish_reason: str = "", error: EpisodeError | None = None
) -> Call:
    return Call(
        node=node,
        model=_NAME,
        started_at=started_at,
        duration_seconds=max(0.0, time.time() - started_at),
        finish_reason=finish_reason,
        error=error,
        simulated=True,
    )

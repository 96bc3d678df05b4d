"""For the tests of an environment: play it here, with a model whose answers you wrote."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import Call, Episode, EpisodeError, Message, SamplingParams
from env_worker.envs.base import Context, play
from env_worker.model.base import Turn, check_asked, show_asked
from env_worker.model.offered import branch
from env_worker.model.simulated import SimulatedModel

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from env_worker.domain import Trace
    from env_worker.envs.base import Environment
    from env_worker.model.base import ModelClient

__all__ = ["ScriptedModel", "rehearse", "rehearsed"]

CLEAN_UP_SECONDS: Final = 5.0
"""What an environment has to end after it was cancelled, before `rehearse` gives it up."""

_NAME: Final = "scripted"


class ScriptedModel:
    """Gives these answers one after another: a text, a whole `Message` (with tool calls, say), or an
    exception that is raised. AssertionError when it is asked once more than it has answers; `rehearse` raises
    it too, whatever the environment makes of it. TypeError if an answer is anything else.

    `asked` has the messages of each turn, as the environment gave them. Its nodes have no tokens.
    """

    def __init__(self, *answers: str | Message | BaseException) -> None:
        for answer in answers:
            if not isinstance(answer, str | Message | BaseException):
                raise TypeError(
                    f"an answer of the script is {answer!r}, expected a text, a Message or an exception: "
                    "pass them one by one, ScriptedModel('first', 'second')"
                )
        self._answers: Final = list(answers)
        self.asked: Final[list[tuple[Message, ...]]] = []
        self.overrun: AssertionError | None = None
        """What the environment heard that asked too often; None where none did."""

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
            self.overrun = AssertionError(
                f"the environment asked for turn {len(self.asked) + 1}, but the script has "
                f"{len(self._answers)} answers; add one, or see why it goes on"
            )
            await asyncio.sleep(0)  # an environment that asks again and again can be cancelled
            raise self.overrun
        answer = self._answers[len(self.asked)]
        self.asked.append(tuple(messages))
        tools_json = show_asked(trace, messages, parent, tools)
        started_at = time.time()
        await asyncio.sleep(0)  # others have their turn, as with a model
        if isinstance(answer, BaseException):
            trace.clear_pending()
            trace.add_call(_call(None, started_at, error=EpisodeError.from_exception(answer, "model")))
            raise answer
        message = Message.assistant(answer) if isinstance(answer, str) else answer
        own = branch(trace, parent, tools_json)
        parent = own.parent
        for given in (*own.again, *messages):
            told = own.tools_json if parent is None else ""
            parent = trace.add_node(given, parent=parent, tools_json=told)
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

    Without `model` the simulated one answers. Whatever the environment raises after its first trace is in
    `episode.errors`, as in a worker, SystemExit and a CancelledError of its own included. Before it, it is
    raised here, as InvalidTaskError is; what is no Exception as the cause of a RuntimeError.

    AssertionError if a ScriptedModel was asked once more than it has answers, even if the environment went on
    without one. TimeoutError if the environment has not ended after `timeout` seconds, even if it ends well
    when it is cancelled then, as a worker cancels it; one that does not end is given up after
    CLEAN_UP_SECONDS. It is cancelled likewise when `rehearse` is. TypeError if an argument is none that a
    worker could have.
    """
    _check(environment, task, sampling)
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
    if isinstance(model, ScriptedModel):
        model.overrun = None
    late, raised = await _played(play(environment, context), timeout)
    if isinstance(model, ScriptedModel) and model.overrun is not None:
        raise model.overrun
    if late:
        raise TimeoutError(late) from raised
    if raised is not None:
        if not episode.traces:
            raise _refusal(raised)
        episode.add_error(EpisodeError.from_exception(raised, phase="environment"))
    episode.finish()
    return episode


def rehearsed(environment: Environment, task: Mapping[str, Any], **options: Any) -> Episode:
    """`rehearse` where there is no event loop."""
    return asyncio.run(rehearse(environment, task, **options))


def _check(environment: object, task: object, sampling: object) -> None:
    if inspect.isclass(environment):
        raise TypeError(f"{environment!r} is a class: pass an instance, as {environment.__name__}()")
    if not inspect.iscoroutinefunction(getattr(environment, "run", None)):
        raise TypeError(
            f"{environment!r} is no environment; define: async def run(self, context) -> None, and pass an "
            "instance"
        )
    if inspect.iscoroutinefunction(getattr(environment, "validate", None)):
        raise TypeError(
            f"{environment!r} has a validate that is no plain method; define: def validate(self, task) -> "
            "None"
        )
    if not isinstance(task, Mapping):
        raise TypeError(f"task is {task!r}, expected a dict, as a worker gives one")
    if not isinstance(sampling, SamplingParams | None):
        raise TypeError(
            f"sampling is a {type(sampling).__name__}, expected SamplingParams: "
            "env_worker.SamplingParams(temperature=0.5)"
        )


async def _played(
    playing: Coroutine[Any, Any, None], timeout: float | None
) -> tuple[str, BaseException | None]:
    """Why it is too late for an episode, "" if it is not; and what was raised."""
    task = asyncio.create_task(_raised_by(playing))
    try:
        await asyncio.wait((task,), timeout=timeout)
        if task.done():
            return "", task.result()
        late = f"the environment has not ended after {timeout:g} s, and was cancelled"
        task.cancel()
        await asyncio.wait((task,), timeout=CLEAN_UP_SECONDS)
        if task.done():
            return late, None if task.cancelled() else task.result()
        return f"{late}; it has not ended {CLEAN_UP_SECONDS:g} s later either: let CancelledError pass", None
    finally:
        await _stopped(task, playing)


async def _stopped(task: asyncio.Task[Any], playing: Coroutine[Any, Any, None]) -> None:
    """Cancel what still runs, and break off what does not end: the test's loop waits for all of its tasks."""
    if not (task.done() or task.cancelling()):
        task.cancel()
        await asyncio.wait((task,), timeout=CLEAN_UP_SECONDS)
    with contextlib.suppress(RuntimeError):  # it catches that too
        playing.close()
    if not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=CLEAN_UP_SECONDS)


async def _raised_by(playing: Coroutine[Any, Any, None]) -> BaseException | None:
    # Returned, not raised: SystemExit would end the loop, and it is the environment's failure.
    try:
        await playing
    except BaseException as error:
        return error
    return None


def _refusal(raised: BaseException) -> Exception:
    """What to raise for a run that a worker refuses: nothing that ends a test runner."""
    if isinstance(raised, Exception):
        return raised
    refusal = RuntimeError(
        f"the environment raised {raised!r} before its first trace: a worker refuses the run as "
        "ENVIRONMENT_FAILED"
    )
    refusal.__cause__ = raised
    return refusal


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

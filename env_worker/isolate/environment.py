"""An environment that plays each run in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING, Final

from env_worker.domain.errors import RemoteError, RemoteInvalidTaskError
from env_worker.isolate.frames import encode
from env_worker.isolate.messages import Cancel, Ended, Job
from env_worker.isolate.mirror import Mirror
from env_worker.isolate.process import EXIT_SECONDS

if TYPE_CHECKING:
    from env_worker.envs.base import Context, Environment
    from env_worker.isolate.children import Children
    from env_worker.isolate.frames import Buffer
    from env_worker.isolate.process import ChildProcess

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 4.5
"""How long a cancelled environment may take to end before its process is killed: shorter than the time after
which `run` names a slow one in the log."""
_LAST_FRAMES_SECONDS: Final = 1.0


class EnvironmentDiedError(RuntimeError):
    """An environment's process ended, or broke its connection, before its run had ended."""


class IsolatedEnvironment:
    """Stands for the environment `spec`: what that writes in its own process is written into the run's
    episode. Not so its task, and attributes of its own that it gives episode or traces: what it writes there
    stays in its process.

    Raises what the environment raised there, as `RemoteError`; EnvironmentDiedError if its process died. A
    cancel is passed on; after GRACE_SECONDS the process is killed, with all that it has started. The task is
    checked in the process too.

    Args:
        spec: what the process loads.
        loaded: the same environment, loaded here; it gives its name and description, and is not run.
        children: starts the processes.
    """

    def __init__(
        self, spec: str, loaded: Environment, children: Children, *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self.name: Final = str(getattr(loaded, "name", ""))
        self.description: Final = str(getattr(loaded, "description", ""))
        self._spec: Final = spec
        self._children: Final = children
        self._grace_seconds: Final = grace_seconds

    async def run(self, context: Context) -> None:
        # A task of its own: the run may be cancelled again while its process has its grace.
        cancelled = asyncio.Event()
        playing = asyncio.get_running_loop().create_task(self._play(context, cancelled))
        while not playing.done():
            try:
                await asyncio.wait((playing,))
            except asyncio.CancelledError:
                cancelled.set()
        error = playing.result()
        if cancelled.is_set():
            raise asyncio.CancelledError
        if error is not None:
            raise error

    async def _play(self, context: Context, cancelled: asyncio.Event) -> Exception | None:
        """Play the run; what it raised."""
        began, ended = await self._converse(child := self._children.take(self._spec), context, cancelled)
        if not (began or ended or cancelled.is_set()):
            # A spare may die before it is given its run, as memory runs out for example. Then nothing of the
            # run has happened.
            child = self._children.take(self._spec, fresh=True)
            _, ended = await self._converse(child, context, cancelled)
        if ended is None:
            return EnvironmentDiedError(
                f"the process of environment {self._spec} ended in the midst of its run: it {child.death()}"
            )
        if ended.error is None:
            return None
        return (RemoteInvalidTaskError if ended.invalid_task else RemoteError)(ended.error)

    async def _converse(
        self, child: ChildProcess, context: Context, cancelled: asyncio.Event
    ) -> tuple[bool, Ended | None]:
        """Whether the run began, and the process's last word."""
        child.log.name = context.request_id[:8]
        conversation = _Conversation(child, context, cancelled, self._grace_seconds)
        ended = None
        try:
            ended = await conversation.hold()
        finally:
            if ended is not None:
                self._children.leave(child)
            else:
                await self._children.give_back(child, min(EXIT_SECONDS, conversation.patience()))
        return conversation.began, ended


class _Conversation:
    """What is said between a run and its process, from the job to the end."""

    def __init__(
        self, child: ChildProcess, context: Context, cancelled: asyncio.Event, grace_seconds: float
    ) -> None:
        self._child: Final = child
        self._context: Final = context
        self._cancelled: Final = cancelled
        self._grace_seconds: Final = grace_seconds
        self._grace_ends: float | None = None
        self.began = False

    def patience(self) -> float:
        """Seconds that are left to a run that was cancelled; without end to any other."""
        if self._grace_ends is None:
            return math.inf
        return max(0.0, self._grace_ends - asyncio.get_running_loop().time())

    async def hold(self) -> Ended | None:
        """The process's last word; None if there is none, because it died or was killed."""
        child = self._child
        try:
            job = encode(self._job())
        except Exception as error:
            child.kill(f"its job cannot be sent: {error}")
            raise
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read())
        telling = loop.create_task(self._tell(job))
        stopping = loop.create_task(self._cancelled.wait())
        try:
            await asyncio.wait((reading, child.exited, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self._cancelled.is_set():
                self._grace_ends = loop.time() + self._grace_seconds
                await asyncio.wait((reading, child.exited), timeout=self._grace_seconds,
                                   return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
                if not (reading.done() or child.exited.done()):
                    logger.warning(
                        "run=%s environment=%s has not ended %g s after it was cancelled, so its process is "
                        "killed",
                        child.log.name, self._context.episode.environment, self._grace_seconds,
                    )  # fmt: skip
                    child.kill("it had been cancelled")
            # A process that it started may hold the connection open: do not wait for its end for long.
            await asyncio.wait((reading,), timeout=_LAST_FRAMES_SECONDS)
            return await reading if reading.done() else None
        finally:
            for task in (reading, telling, stopping):
                task.cancel()
            await asyncio.gather(reading, telling, stopping, return_exceptions=True)

    async def _read(self) -> Ended | None:
        mirror = Mirror(self._context.episode)
        try:
            while (ended := mirror.apply(await self._child.frames.next())) is None:
                self.began = True
        except EOFError:
            return None
        except Exception as error:
            self._child.kill(f"what it sent cannot be used: {error}")
            raise
        return ended

    async def _tell(self, job: list[Buffer]) -> None:
        with contextlib.suppress(OSError):  # it is gone, which whoever reads hears too
            await self._child.write(job)
            await self._cancelled.wait()
            await self._child.write(encode(Cancel()))

    def _job(self) -> Job:
        context, episode = self._context, self._context.episode
        return Job(
            episode_id=episode.id,
            request_id=context.request_id,
            environment_name=episode.environment,
            task=context.task,
            sampling=context.sampling,
            model=context.model,
            deadline=context.deadline,
            owner=episode.owner,
            group_id=episode.group_id,
        )

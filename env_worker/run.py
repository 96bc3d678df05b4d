"""One run, from its place in the queue to its reply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import errors_pb2

from env_worker import wire
from env_worker.arrays.errors import ArrayKeepError
from env_worker.bell import Bell
from env_worker.delta.limits import MessageTooLargeError
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import Episode, EpisodeError, InvalidTaskError
from env_worker.domain.ledger import Event, State
from env_worker.endings import environment_failed, hook_failed, hook_unusable, own_fault, too_large
from env_worker.envs.base import Context, play
from env_worker.model.errors import loggable
from env_worker.port import PortBrokenError, RunPort
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.admission import Admitted
    from env_worker.domain import SamplingParams
    from env_worker.environment_loop import Outcome
    from env_worker.envs.base import Environment
    from env_worker.hook import EpisodeHook
    from env_worker.model.base import ModelClient
    from env_worker.run_services import Services

logger = logging.getLogger(__name__)

SLOW_CANCEL_SECONDS: Final = 5.0
"""An environment that takes longer to end after it was cancelled is named in the log."""
_EPISODE_IDS: Final = random.Random(secrets.randbits(256))
"""Unique, not secret: asking the system for each would cost a call."""
_KEEP_AHEAD: Final = frozenset({State.QUEUED, State.RUNNING, State.KEEPING, State.KEEPING_ABANDONED})
"""Where `keep` may still be called, or has not returned."""
_FORGOTTEN: Final = Episode("", "", {})
"""Stands for the episode of a run that has replied and that no hook has kept."""
_WRITTEN: Final[RunPort[Refusal]] = RunPort()
"""Stands for the port of a run that has replied."""
_WRITTEN.open()
_WRITTEN.end()


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What was asked for, checked. `deadline` is in seconds of the worker's clock."""

    request_id: str
    environment_name: str
    environment: Environment
    task: Mapping[str, Any]
    task_json: str
    sampling: SamplingParams
    model: ModelClient
    session_id: str = ""
    owner: str = ""
    group_id: str = ""
    priority: int = 0
    deadline: float | None = None


class Run:
    """Carries one run as a task of its own: neither a caller nor its handler can tear it in half.

    Whoever settles the entry calls `end`, which answers the caller at once; the task then finishes what it is
    in, a keep above all. It decides nothing by the exceptions that it meets, only by what the entry says.
    """

    def __init__(self, spec: RunSpec, admitted: Admitted, port: RunPort[Refusal], services: Services) -> None:
        self.entry: Final = admitted.entry
        self.port = port
        self.name: Final = spec.request_id[:8]
        self.hook: EpisodeHook | None = None
        """The hook whose `keep` took the episode: the one that discards it."""
        self._loop: Final = asyncio.get_running_loop()
        self._wake: Final = Bell()
        self.episode = Episode(
            f"{_EPISODE_IDS.getrandbits(128):032x}",
            spec.environment_name,
            dict(spec.task),
            spec.request_id,
            spec.owner,
            spec.group_id,
            on_change=services.wake_ups.listener(self._wake.ring),
        )
        self._spec: RunSpec | None = spec
        self._place: Final = admitted.place
        self._reservation = admitted.reservation
        self._services: Final = services
        self._environment: Outcome | None = None
        self._duration_seconds = 0.0
        self._remains: Episode | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if spec.deadline is not None:
            remaining = max(0.0, spec.deadline - services.clock())
            self._deadline = self._loop.call_later(remaining, self._settle, Event.DEADLINE)

    @property
    def overdue(self) -> bool:
        """Whether the run's deadline has passed."""
        deadline = None if self._spec is None else self._spec.deadline
        return deadline is not None and deadline <= self._services.clock()

    async def carry(self) -> None:
        """The run's task."""
        try:
            await self._carry_or_fail()
            await self._environment_end()
        finally:
            self._services.slots.leave(self._place)

    def end(self, refusal: Refusal) -> None:
        """The entry is settled: answer the caller, stop the environment, wake the task. Again: changes
        nothing."""
        self.port.end(refusal)
        if not self._place.granted.rung:
            self._services.slots.leave(self._place)
        self._close(self._environment)
        self._wake.ring()

    def moved(self) -> None:
        """The entry has moved on: where no keep is ahead any more, give back the room that was reserved for
        it."""
        if self.entry.state not in _KEEP_AHEAD:
            self.unreserve()

    def unreserve(self) -> None:
        """Give back the room that was reserved for its training arrays. Again: changes nothing."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def retire(self) -> None:
        """The reply has left: hold on to what a late discard needs, head, trace ids and infos, and nothing
        else. What no hook has kept is not discarded."""
        self._close(None)
        assert (self._remains is None) is (self.hook is None), "they are made before the reply is sent"
        self.episode.on_change = None
        self.episode = self._remains or _FORGOTTEN
        self.port = _WRITTEN
        self._spec = None
        self._environment = None  # it is over, and what it raised leads through its frames to every node

    async def _carry_or_fail(self) -> None:
        try:
            await self._carry()
        except PortBrokenError:
            pass  # whoever settled the run broke the port, and has answered the caller
        except MessageTooLargeError as error:
            self._settle(Event.ENCODE_FAILED, too_large(error))
        except Exception as error:
            logger.exception("run=%s reason=INTERNAL a fault of the worker itself", self.name)
            self._settle(Event.ENCODE_FAILED, own_fault(self.name, EpisodeError.from_exception(error)))

    async def _carry(self) -> None:
        spec = self._spec
        assert spec is not None
        await self._place.granted.heard()
        if not self._settle(Event.STARTED):
            return
        self.port.open()
        streamer = DeltaStreamer(self.episode)
        raised = await self._play(spec, streamer)
        if self.entry.settled or not self._is_episode(raised):
            return
        self.episode.finish()
        if await self._keep(spec.sampling):
            await self._reply(spec, streamer)

    async def _play(self, spec: RunSpec, streamer: DeltaStreamer) -> BaseException | None:
        """Run the environment on its loop and stream what it writes; what it raised."""
        context = Context(spec.request_id, spec.task, spec.sampling, spec.model, self.episode, spec.deadline)
        started = time.monotonic()
        playing = play(spec.environment, context)
        outcome = self._environment = self._services.environments.submit(playing, spec.request_id)
        outcome.add_done_callback(lambda _: self._wake_soon())
        while not (outcome.done() or self.entry.settled):
            await self._wake.heard()
            self._wake.rung = False
            while not outcome.done() and (message := streamer.next_message()) is not None:
                await self.port.send(message)
                streamer.commit()
        self._duration_seconds = time.monotonic() - started
        return outcome.result() if outcome.done() else None

    def _is_episode(self, raised: BaseException | None) -> bool:
        """Whether there is an episode; if not, the run is refused. An exception after the first trace is
        data."""
        if raised is None:
            return True
        if self.episode.traces:
            failure = EpisodeError.from_exception(raised, phase="environment")
            logger.warning(
                "run=%s environment=%s raised %s, so the episode is not ok: %s",
                self.name, self.episode.environment, failure.type, loggable(failure, raised, failure.message),
            )  # fmt: skip
            self.episode.add_error(failure)
            return True
        if isinstance(raised, InvalidTaskError):
            self._settle(
                Event.REFUSED, Refusal(errors_pb2.ERROR_REASON_INVALID_TASK, str(raised), field="task_json")
            )
            return False
        error = EpisodeError.from_exception(raised)
        said = loggable(error, raised, error.traceback or error.message)
        logger.error("run=%s reason=ENVIRONMENT_FAILED %s", self.name, said)
        self._settle(Event.ENVIRONMENT_FAILED, environment_failed(self.episode.environment, error))
        return False

    async def _keep(self, sampling: SamplingParams) -> bool:
        """Hand the episode to the hook, and forget its arrays. Whether there is a reply to send."""
        hook = self._services.hook()
        if hook is None:
            self.episode.drop_arrays()
            return self._settle(Event.FINISHED_UNKEPT)
        try:
            self._services.adopt(hook)
        except Exception as unusable:  # its store is another worker's, or the user's code failed
            failure = EpisodeError.from_exception(unusable)
            logger.error("run=%s reason=HOOK_FAILED %s", self.name, failure.traceback or failure.type)
            self._settle(Event.ENCODE_FAILED, hook_unusable(failure))
            return False
        async with self._services.threads.free_keep_threads:
            if not self._settle(Event.FINISHED):
                return False
            self.hook = hook
            error = await self._services.threads.keep(hook, self.episode, sampling)
        # The ledger first: whatever fails from here on fails a run that is known to be kept.
        if error is None:
            self._settle(Event.KEEP_RETURNED)
        else:
            failure = EpisodeError.from_exception(error)
            self._settle(Event.KEEP_RAISED, hook_failed(failure))
            said = failure.traceback or failure.type
            if isinstance(error, ArrayKeepError):  # no fault: no room, or a hole. Each run may come to it.
                said = f"{failure.type}: {failure.message}"
            logger.error("run=%s reason=HOOK_FAILED keep raised %s", self.name, said)
        self.episode.drop_arrays()
        return not self.entry.settled

    async def _reply(self, spec: RunSpec, streamer: DeltaStreamer) -> None:
        """Stream what is left, and the reply."""
        head = wire.head(
            self.episode,
            task_json=spec.task_json,
            worker_instance=self._services.instance,
            duration_seconds=self._duration_seconds,
        )
        if self.hook is not None:
            # Made before the reply, because nothing may fail between the reply and its status.
            self._remains = self.episode.without_nodes()
        messages = streamer.final_messages(head)
        message = next(messages)
        for following in messages:
            await self.port.send(message)
            message = following
        await self.port.send_reply(message, lambda: self._settle(Event.REPLIED))

    async def _environment_end(self) -> None:
        """Keep the place until the environment has really ended, so that no more of them run than may."""
        outcome, self._environment = self._environment, None  # it leads to this run, which leads to it
        if outcome is None or outcome.done():
            return
        self._close(outcome)
        ended = asyncio.wrap_future(outcome, loop=self._loop)
        done, _ = await asyncio.wait((ended,), timeout=SLOW_CANCEL_SECONDS)
        if not done:
            logger.warning(
                "run=%s environment=%s has not ended %g s after it was cancelled: it blocks its loop, or "
                "ignores "
                "cancellation; its place stays taken",
                self.name, self.episode.environment, SLOW_CANCEL_SECONDS,
            )  # fmt: skip
            await ended

    def _wake_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(self._wake.ring)

    def _close(self, environment: Outcome | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if environment is not None and not environment.done():
            self._services.environments.cancel(environment)

    def _settle(self, event: Event, refusal: Refusal | None = None) -> bool:
        return self._services.settle(self, event, refusal)

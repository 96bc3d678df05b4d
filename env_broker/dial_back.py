"""Whether the workers that registered can be reached where they say they are."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

import grpc.aio
from envtrio.v1 import env_service_pb2

from env_broker.hello import PROTOCOL_GENERATION
from env_broker.link import Leg
from env_broker.status import short
from env_broker.tasks import background, first_of
from env_broker.worker_lane import CAPABILITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_broker.clock import Clock
    from env_broker.link import WorkerLink

log = logging.getLogger(__name__)

DIAL_SECONDS: Final = 2.0
"""How long a worker may take to answer."""

FIRST_DELAY_SECONDS: Final = 0.2
LAST_DELAY_SECONDS: Final = 2.0
"""Between two tries, which go on for as long as the worker is registered."""

_MOMENTS: Final = 1
"""Failed tries in a row that mean nothing yet, as a connection may break for a moment: runs wait on."""

_MAX_CAUSE_CHARACTERS: Final = 300
_ADVICE: Final = "start it with an --advertise HOST:PORT that the broker can dial, or open its port"


class Dial(Protocol):
    """One try to reach a worker."""

    async def __call__(self, link: WorkerLink) -> str:
        """Why it was not reached, and what to do about it; empty if it was."""


async def describe(link: WorkerLink) -> str:
    """Dial: call the worker's own Describe. Another process at its address is not this worker."""
    request = env_service_pb2.DescribeRequest(protocol_generation=PROTOCOL_GENERATION)
    try:
        answer = await link.describe(request, DIAL_SECONDS)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"nobody answered in {DIAL_SECONDS:g} s; {_ADVICE}"
        return f"{error.code().name}: {error.details()}"[:_MAX_CAUSE_CHARACTERS] + f"; {_ADVICE}"
    if not isinstance(answer, env_service_pb2.DescribeResponse):  # gRPC hands out None where it cannot decode
        return f"what answers there is no env-worker: its answer is no DescribeResponse; {_ADVICE}"
    if answer.instance != link.worker.instance:
        who = f"{answer.role[:16]} {short(answer.instance)}"
        return f"another process answers there, {who}; correct its --advertise"
    link.lane.offered = CAPABILITY in answer.capabilities
    return ""


class DialBack:
    """Keeps `reachable` of every registered worker right.

    A worker that nobody reached since it registered, or since its connection broke, gets no run: the lease
    says that the worker reaches the broker, and a run needs the other direction.

    Args:
        dial: tries once.
        on_change: called when a worker became reachable or ceased to be, or is unreachable for another cause.
        on_reached: called with a worker that has just become reachable, before it gets runs.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        on_reached: Callable[[WorkerLink], None] = lambda _: None,
        dial: Dial = describe,
    ) -> None:
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._on_reached: Final = on_reached
        self._dial: Final = dial

    def watch(self, link: WorkerLink) -> None:
        """The worker has registered: it counts as reachable once it was reached."""
        link.worker.reachable = False
        _Watch(link, self._clock, self._on_change, self._on_reached, self._dial)

    def verify(self, link: WorkerLink) -> None:
        """Reach it again; until that fails it counts for what it is now."""
        for leg in link.legs:
            if isinstance(leg, _Watch):
                leg.hurry()

    def doubt(self, link: WorkerLink) -> None:
        """A run's connection to it broke while its lease lives: no new runs until it was reached again."""
        if not link.lost:
            link.worker.reachable = False
            self.verify(link)
            self._on_change()


class _Watch(Leg):
    """Dials one worker until it is reached, and again whenever its connection broke."""

    def __init__(
        self,
        link: WorkerLink,
        clock: Clock,
        on_change: Callable[[], None],
        on_reached: Callable[[WorkerLink], None],
        dial: Dial,
    ) -> None:
        self._link: Final = link
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._on_reached: Final = on_reached
        self._dial: Final = dial
        self._hurry: Final = asyncio.Event()
        self._said: Final[set[str]] = set()
        link.legs.add(self)
        self._task: Final = background(self._run(), f"dial back {link.name}")

    def hurry(self) -> None:
        """Dial now."""
        self._hurry.set()

    @property
    def waits(self) -> bool:
        """As in Leg: it is there as long as the link is, and nothing that the worker says is for it."""
        return False

    def worker_lost(self) -> None:
        """As in Leg."""
        self._task.cancel()

    async def _run(self) -> None:
        delay, failures = FIRST_DELAY_SECONDS, 0
        while True:
            self._hurry.clear()
            try:
                cause = await self._dial(self._link)
            except Exception as error:  # whatever it was: the next try may find another
                log.exception("worker=%s could not be dialled, a fault of the broker itself", self._link.name)
                cause = f"dialling it failed: {type(error).__name__}: {error}"[:_MAX_CAUSE_CHARACTERS]
            failures = failures + 1 if cause else 0
            if 0 < failures <= _MOMENTS:
                self._unreachable_now()
            else:
                self._found(cause)
            if cause:
                await first_of(self._clock.sleep(delay), self._hurried())
                delay = min(2 * delay, LAST_DELAY_SECONDS)
                continue
            delay = FIRST_DELAY_SECONDS
            await first_of(self._disconnected(), self._hurried())

    async def _hurried(self) -> None:
        await self._hurry.wait()

    async def _disconnected(self) -> None:
        """Return a moment after the connection broke, so that one which breaks at once is not dialled in a
        busy loop."""
        await self._link.disconnected()
        self._unreachable_now()
        await self._clock.sleep(FIRST_DELAY_SECONDS)

    def _unreachable_now(self) -> None:
        """For whatever cause, and perhaps for a moment only."""
        if self._link.worker.reachable:
            self._link.worker.reachable = False
            self._on_change()

    def _found(self, cause: str) -> None:
        link, worker = self._link, self._link.worker
        changed = (worker.reachable, worker.unreachable_because) != (not cause, cause)
        if not (cause or worker.reachable):
            self._on_reached(link)
        worker.reachable, worker.unreachable_because = not cause, cause
        if cause and cause not in self._said:
            self._said.add(cause)
            log.warning(
                "worker=%s holds a lease, but gets no runs: the broker cannot reach it at %s: %s",
                link.name,
                link.address,
                cause,
            )
        elif not cause and self._said:
            self._said.clear()
            log.info("worker=%s can be reached", link.name)
        if changed:
            self._on_change()

"""One run's call to its worker, and how it is ended although its client does not read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from env_broker.link import Leg

if TYPE_CHECKING:
    from env_broker.clock import Clock
    from env_broker.held_request import HeldRequest
    from env_broker.relay import ClientHop
    from env_broker.worker_call import WorkerCall

UNREAD_SECONDS: Final = 5.0
"""How long a client has, after its run has ended, to read what is on its way to it."""
SETTLED_SECONDS: Final = 1.0
"""How long a refusal may look like an admission: its status comes right behind."""


class RunLeg(Leg):
    """A run's call to its worker, and the task that carries it to the client; made in that task."""

    def __init__(self, call: WorkerCall, hop: ClientHop, clock: Clock) -> None:
        self.call: Final = call
        self.taken_back = False
        self.stopped = False
        self.lost = False
        self._hop: Final = hop
        self._clock: Final = clock
        self._carrier: Final = asyncio.current_task()
        self._waiting: asyncio.Task[None] | None = None
        self._dropping: asyncio.TimerHandle | None = None
        self._interrupted = False

    def admitted(self, request: HeldRequest) -> None:
        """The worker has the run, as it seems: soon nobody else needs its request."""
        self._dropping = asyncio.get_running_loop().call_later(SETTLED_SECONDS, request.drop)

    def worker_lost(self) -> None:
        self.lost = True
        self.call.cancel()
        self._bound(quietly=False)

    def stop(self) -> None:
        """End the run: the broker stops."""
        self.stopped = True
        self.call.cancel()
        self._bound(quietly=False)

    def take_back(self) -> None:
        """The worker has answered a Cancel, and ends the run by itself."""
        self.taken_back = True
        self._bound(quietly=True)

    def cancelled(self) -> bool:
        """Whether somebody else wants its task to end: the client's hop broke, or its deadline passed.

        Ask when CancelledError came. Where the leg itself broke off a write, that is over with this.
        """
        assert self._carrier is not None
        if self._interrupted:
            self._interrupted = False
            self._carrier.uncancel()
        return self._carrier.cancelling() > 0

    def close(self) -> None:
        """Its task has heard of the end."""
        self.call.cancel()
        if self._dropping is not None:
            self._dropping.cancel()
        if self._waiting is not None:
            self._waiting.cancel()

    def _bound(self, *, quietly: bool) -> None:
        """The run has ended, but its client may never read the message that is being written, nor give credit
        for the one that waits."""
        self._hop.give_up(quietly=quietly)
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._interrupt())

    async def _interrupt(self) -> None:
        await self._clock.sleep(UNREAD_SECONDS)
        assert self._carrier is not None
        self._interrupted = self._carrier.cancel()

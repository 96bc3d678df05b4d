"""One run through the broker: placed on a worker, its bytes passed to the client as they come."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

import grpc.aio

from env_broker.cancel import cancel_requested
from env_broker.carried import REPLIED, CarriedHop
from env_broker.dispatch import Turn
from env_broker.route import DuplicateRouteError, InvalidRequestIdError, RoutesFullError
from env_broker.run_leg import RunLeg
from env_broker.status import BEFORE_ADMISSION, Refusal, cut, error_reason, short
from env_broker.worker_cancel import PassedOn
from env_broker.worker_status import lost, translated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from env_broker.cancel import Canceller
    from env_broker.clock import Clock
    from env_broker.dispatch import Dispatcher
    from env_broker.held_request import HeldRequest
    from env_broker.link import WorkerLink
    from env_broker.pool import Pool
    from env_broker.quiet import Quiet
    from env_broker.routes import RouteTable

log = logging.getLogger(__name__)

MAX_PLACEMENTS: Final = 3
"""Workers that a run is offered to: one that refused it before admission, and two more. Those that have no
room for its training arrays do not count: each of them gets no more runs until it has some."""
_MOST_WORDS: Final = 400
"""Bytes of what such a worker said."""


class ClientHop(Protocol):
    """What a run knows of its caller."""

    async def admitted(self) -> None:
        """Tell the caller that a worker has admitted the run."""

    async def send(self, message: bytes) -> None:
        """Return when the message was written. Raises what the transport raises when the hop broke, and
        CancelledError when it was given up."""

    def give_up(self, *, quietly: bool) -> None:
        """The run has ended: what is not being written yet need not be. Synchronous.

        Args:
            quietly: `send` drops it and returns, as its worker says how the run ended; else it raises.
        """

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None without one."""


class _Declined(Exception):
    """A worker refused the run before it admitted it."""

    def __init__(self, error: grpc.aio.AioRpcError, reason: str) -> None:
        super().__init__(reason)
        self.error: Final = error
        self.reason: Final = reason


class Relay:
    """Carries runs.

    Args:
        drains: called with the instance of a worker that declines a run because it drains.
        quiet: is told of every run and of what happens to it.
        doubt: called with a worker whose connection broke while its lease lives.
        post_mortem: by slot and instance, how a local worker ended and what it logged last.
    """

    def __init__(
        self,
        *,
        routes: RouteTable,
        links: Mapping[str, WorkerLink],
        pool: Pool,
        dispatcher: Dispatcher,
        canceller: Canceller,
        clock: Clock,
        drains: Callable[[str], None],
        quiet: Quiet,
        doubt: Callable[[WorkerLink], None] = lambda _: None,
        post_mortem: Callable[[str, str], Awaitable[str]],
    ) -> None:
        self._routes: Final = routes
        self._links: Final = links
        self._pool: Final = pool
        self._dispatcher: Final = dispatcher
        self._canceller: Final = canceller
        self._clock: Final = clock
        self._drains: Final = drains
        self._quiet: Final = quiet
        self._doubt: Final = doubt
        self._post_mortem: Final = post_mortem
        self._legs: Final[dict[str, RunLeg]] = {}
        self._idle: Final = asyncio.Event()
        self._idle.set()
        self.lost = 0
        """Runs that ended because their worker was lost, or the broker stopped."""

    async def carry(self, request: HeldRequest, hop: ClientHop) -> None:
        """Run one request. Returning means status OK.

        Raises:
            Refusal: the broker's own status.
            PassedOn: the worker's status.
        """
        request_id = request.request_id
        self._enter(request_id, request.session_id)
        carried = self._quiet.enter(request_id, self._clock.now())
        self._idle.clear()
        try:
            await self._place(request, CarriedHop(hop, carried, self._clock))
            carried.happened(REPLIED, self._clock.now())
        finally:
            self._routes.ended(request_id, self._clock.now())
            self._quiet.leave(carried, self._clock.now())
            if not self._quiet:
                self._idle.set()

    async def idle(self) -> None:
        """Return once no run is carried, queued ones included."""
        await self._idle.wait()

    def stop(self) -> None:
        """End every run that has a worker, as if it were lost: it may have had effects. Workers are told."""
        self.lost += len(self._legs)
        for leg in tuple(self._legs.values()):
            leg.stop()

    def taken_back(self, request_id: str) -> None:
        """A Cancel of that run was answered: it has ended, or ends in a moment."""
        if (leg := self._legs.get(request_id)) is not None:
            leg.take_back()

    def _enter(self, request_id: str, session_id: str) -> None:
        try:
            fresh = self._routes.queue(request_id, session_id, self._clock.now())
        except InvalidRequestIdError as error:
            raise Refusal("INVALID_REQUEST_ID", str(error), field="request_id") from None
        except DuplicateRouteError as error:
            raise Refusal("DUPLICATE_REQUEST_ID", str(error), request_id=short(request_id)) from None
        except RoutesFullError as error:
            raise Refusal("TABLE_FULL", str(error), retry_after=1.0) from None
        if not fresh:
            raise cancel_requested(request_id)

    async def _place(self, request: HeldRequest, hop: CarriedHop) -> None:
        request_id, tried, placements, turn = request.request_id, set[str](), 0, Turn()
        while placements < MAX_PLACEMENTS:
            placements += 1
            try:
                worker = await self._dispatcher.acquire(
                    request_id,
                    request.environment,
                    priority=request.priority,
                    size=len(request.data),
                    timeout=hop.time_remaining(),
                    avoid=tried,
                    turn=turn,
                )
            except Refusal as refusal:
                # It had no effect anywhere, so its id stays free. A cancelled run's id does not.
                if refusal.reason != "CANCEL_REQUESTED":
                    self._routes.withdraw(request_id, self._clock.now())
                raise
            try:
                link = self._links.get(worker.instance)
                if link is None:
                    continue  # it was lost in the moment in which the run got its slot
                if not self._routes.place(request_id, worker.instance):
                    raise cancel_requested(request_id)
                hop.placed(link.name)
                return await self._relay(link, request, hop)
            except _Declined as declined:
                tried.add(worker.instance)
                hop.declined()
                if declined.reason == "DRAINING":
                    self._drains(worker.instance)  # it may be replaced, and then the run waits for that
                elif declined.reason == "ARRAY_BUDGET":
                    placements -= 1
                    self._dispatcher.full(worker, cut(declined.error.details() or "", _MOST_WORDS))
                log.info(
                    "run=%s worker=%s declined reason=%s",
                    short(request_id),
                    short(worker.instance),
                    declined.reason,
                )
                elsewhere = self._dispatcher.serves_elsewhere(request.environment, tried)
                if placements == MAX_PLACEMENTS or not elsewhere or not request.data:
                    # It had no effect there either.
                    self._routes.withdraw(request_id, self._clock.now())
                    raise PassedOn(declined.error) from None
                if not self._routes.unplace(request_id, self._clock.now()):
                    raise cancel_requested(request_id) from None
            finally:
                self._dispatcher.release(worker)
        self._routes.withdraw(request_id, self._clock.now())
        raise Refusal(
            "NOT_ADMITTED",
            f"{MAX_PLACEMENTS} workers were lost before run {short(request_id)} reached one; send it again",
            limit=MAX_PLACEMENTS,
            request_id=short(request_id),
        )

    async def _relay(self, link: WorkerLink, request: HeldRequest, hop: ClientHop) -> None:
        request_id = request.request_id
        leg = self._legs[request_id] = RunLeg(link.run(request, hop.time_remaining()), hop, self._clock)
        link.legs.add(leg)
        settled = relayed = False
        try:
            if await leg.call.admitted():
                leg.admitted(request)
                await hop.admitted()
            # At most one message in flight: while the client does not read, nothing is read from the worker,
            # whose credit ends where runs share a stream.
            while (message := await leg.call.read()) is not None:
                await hop.send(message)
                relayed = True
            settled = True
            if not self._routes.replied(request_id, self._clock.now(), self._window(link)):
                raise await self._overruled(link, request_id)
        except grpc.aio.AioRpcError as error:
            reason = error_reason(tuple(error.trailing_metadata() or ()))
            settled = reason is not None
            if reason == "DUPLICATE_REQUEST_ID":
                # The worker knows the id from elsewhere: cancels must still find that run.
                self._routes.cut(request_id, self._clock.now(), self._window(link))
            if reason in BEFORE_ADMISSION and not relayed and reason is not None:
                raise _Declined(error, reason) from None
            if settled:
                raise PassedOn(error) from None
            raise await self._translated(error, link, request_id) from None
        except asyncio.CancelledError:
            if leg.cancelled():
                raise
            if leg.taken_back:
                raise cancel_requested(request_id) from None
            if leg.stopped:
                raise lost(link, request_id, "was left by this broker, which stops,") from None
            raise await self._lost(link, request_id, "was lost") from None
        finally:
            del self._legs[request_id]
            link.legs.discard(leg)
            leg.close()
            # Whatever ended the run here, its worker may count it as running, or its reply as delivered.
            if not settled and not leg.lost:
                self._routes.cut(request_id, self._clock.now(), self._window(link))
                self._canceller.tell(request_id, "its caller or its stream is gone")

    def _window(self, link: WorkerLink) -> float:
        return max(self._pool.late_cancel_seconds, link.worker.late_cancel_seconds)

    async def _overruled(self, link: WorkerLink, request_id: str) -> Refusal:
        """The worker said OK, but the run had been cancelled, or given up with its worker."""
        if link.lost:
            return await self._lost(link, request_id, "was lost")
        # It was answered ABORTED here while the worker did not know it yet, or DISCARDED: make sure of it.
        self._canceller.tell_worker(link.worker.instance, request_id, "cancelled before its reply")
        return cancel_requested(request_id)

    async def _lost(self, link: WorkerLink, request_id: str, what: str) -> Refusal:
        self.lost += 1
        detail = await self._post_mortem(link.local_slot, link.worker.instance) if link.local_slot else ""
        return lost(link, request_id, what, detail)

    async def _translated(self, error: grpc.aio.AioRpcError, link: WorkerLink, request_id: str) -> Refusal:
        """gRPC made this status, not the worker."""
        if (refusal := translated(error, link, request_id)) is not None:
            return refusal
        self._doubt(link)
        # Known from its lease, if that ended first: the call was then ended by the broker itself.
        details = (error.details() or "")[:200]
        what = "was lost" if link.lost else f"broke the connection ({details})"
        return await self._lost(link, request_id, what)

"""Frees arrays at the workers that keep them: all are asked at once, by one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from envtrio.v1.training_array_service_pb2 import ReleaseReferences, ReleaseRequest

from env_client.errors import EnvError, FetchCancelledError, FetchDeadlineError, UnavailableError
from env_client.request import PROTOCOL_GENERATION
from env_client.training_arrays.lost import QUICK_SECONDS
from env_client.training_arrays.status import Retries, call_error, is_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from env_client.training_arrays.bounds import CallBounds
    from env_client.training_arrays.groups import Group
    from env_client.training_arrays.links import ArrayLinks
    from env_client.training_arrays.lost import LostWorkers

_LOG: Final = logging.getLogger(__name__)

MAX_CALLS: Final = 256
"""Under way at once; further workers wait for one of them."""
REFUSED_SECONDS: Final = 3.0
"""Where nothing listens the process is gone, and with it what it held: no reason to wait for long."""
FIRST_TRY_SECONDS: Final = 1.0
"""What every worker's first try may take, however late it comes."""
_MAX_SHOWN: Final = 20


_Ended: TypeAlias = "queue.SimpleQueue[_Order | None]"
"""Orders whose try has ended; None: the release is given up."""


@dataclass
class _Order:
    """One request to one worker, and how it stands: in the end `released` or `error` is set.

    Attributes:
        quick: whether one try must do.
        seconds: that the try of now may take; None: no limit.
        call: that try.
        resources: what it holds.
    """

    about: object
    address: str
    instance: str
    request: ReleaseRequest
    retries: Retries
    quick: bool
    seconds: float | None = None
    call: Any = None
    released: int | None = None
    error: EnvError | None = None
    resources: ExitStack = field(default_factory=ExitStack)

    @property
    def is_gone(self) -> bool:
        """Whether what was to be released is gone for certain, with the process that held it."""
        # What serves no arrays there is another process than the one that kept them.
        return self.error is not None and (is_refused(self.error) or self.error.code == "UNIMPLEMENTED")


class ArrayReleaser:
    """Releases over the links of one client. Thread-safe.

    Args:
        links: the channels.
        lost: workers that could not be reached lately; for those one quick try must do.
        lost_seconds: how long another worker that cannot be reached is tried again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        links: ArrayLinks,
        lost: LostWorkers,
        lost_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._lost = lost
        self._lost_seconds = lost_seconds
        self._clock = clock

    def references(self, groups: Sequence[Group], bounds: CallBounds) -> int:
        """How many were freed now. Each worker was asked once at least, also where it raises.

        Raises:
            UnavailableError, FetchDeadlineError: a worker could not be asked, and may hold its arrays still.
            EnvError: a worker refused.
        """
        orders = [
            self._order(
                group,
                group.address,
                group.instance,
                references=ReleaseReferences(instance=group.instance, keys=group.keys),
            )
            for group in groups
        ]
        self._ask(orders, bounds)
        for order in orders:
            if order.is_gone:
                _LOG.warning("nothing to release any more: %s", order.error)
        released = sum(order.released or 0 for order in orders)
        failed = [order for order in orders if order.error is not None and not order.is_gone]
        if failed:
            raise _failure(failed, len(orders), released)
        return released

    def owner(self, address: str, owner: str, bounds: CallBounds) -> int:
        """How many were freed now.

        Raises:
            UnavailableError: the worker could not be reached; if it is gone, so are its arrays.
            FetchDeadlineError: the worker is there, but did not answer in time.
            EnvError: it refused; with the code UNIMPLEMENTED it keeps no arrays.
        """
        order = self._order(f"arrays of owner {owner!r} at {address}", address, "", owner=owner)
        self._ask([order], bounds)
        if order.error is not None:
            raise order.error
        return order.released or 0

    def _order(self, about: object, address: str, instance: str, **target: Any) -> _Order:
        quick = self._lost.has(address, instance)
        seconds = 0.0 if quick else self._lost_seconds
        retries = Retries(seconds, refused_seconds=REFUSED_SECONDS, clock=self._clock)
        request = ReleaseRequest(protocol_generation=PROTOCOL_GENERATION, **target)
        return _Order(about, address, instance, request, retries, quick)

    def _ask(self, orders: Sequence[_Order], bounds: CallBounds) -> None:
        """Have all orders end. Every first try is made before any second one.

        Raises:
            FetchCancelledError: nobody wants it any more.
        """
        ended: _Ended = queue.SimpleQueue()
        due = [(0.0, number, order) for number, order in enumerate(orders)]
        numbers = itertools.count(len(due))
        seconds = bounds.seconds_left()
        under_way = 0
        try:
            with bounds.calling(_Alarm(ended)):
                while due or under_way:
                    now = self._clock()
                    while due and due[0][0] <= now and under_way < MAX_CALLS:
                        self._send(heapq.heappop(due)[2], bounds, seconds, ended)
                        under_way += 1
                    order = _next(ended, due[0][0] - now if due and under_way < MAX_CALLS else None)
                    if order is not None:
                        under_way -= 1
                        delay = self._settle(order, bounds)
                        if delay is not None:
                            heapq.heappush(due, (self._clock() + delay, next(numbers), order))
                    if bounds.is_cancelled:
                        due.clear()
        finally:
            for order in orders:
                order.resources.close()
        if bounds.is_cancelled and any(order.released is None for order in orders):
            raise FetchCancelledError(f"{orders[0].about}: the release was given up before its end")

    def _send(self, order: _Order, bounds: CallBounds, seconds: float | None, ended: _Ended) -> None:
        left = bounds.seconds_left()
        if seconds is not None and left is not None and order.error is None:
            left = min(seconds, max(left, FIRST_TRY_SECONDS))
        if order.quick:
            left = QUICK_SECONDS if left is None else min(left, QUICK_SECONDS)
        order.seconds = left
        with ExitStack() as resources:
            link = resources.enter_context(self._links.to(order.address))
            call = link.release.future(order.request, timeout=left)
            order.call = resources.enter_context(bounds.calling(call))
            order.resources = resources.pop_all()
        call.add_done_callback(lambda _: ended.put(order))

    def _settle(self, order: _Order, bounds: CallBounds) -> float | None:
        """Take in how a try ended. Seconds until the next one; None: there is none."""
        call = order.call
        order.resources.close()
        # Not result() first: of a call that was cancelled it raises what is no RpcError.
        if call.code() is grpc.StatusCode.OK:
            order.released, order.error = call.result().released, None
            self._lost.found(order.address, order.instance)
            return None
        if bounds.is_cancelled:
            return None
        error = call_error(call, order.about)
        if isinstance(error, FetchDeadlineError):
            # How it ended before says more.
            order.error = order.error or _silent(order)
            return None
        order.error = error
        delay = order.retries.delay(error)
        left = bounds.seconds_left()
        if delay is not None and (left is None or delay < left):
            return delay
        if isinstance(error, UnavailableError):
            self._lost.add(order.address, order.instance)
            self._links.renew(order.address)
        else:
            self._lost.found(order.address, order.instance)
        return None


class _Alarm:
    """Wakes the thread of a release that nobody wants any more."""

    def __init__(self, ended: _Ended) -> None:
        self._ended = ended

    def cancel(self) -> None:
        """It is so."""
        self._ended.put(None)


def _next(ended: _Ended, seconds: float | None) -> _Order | None:
    """The next order whose try has ended; None: there is something else to do."""
    try:
        return ended.get(timeout=None if seconds is None else max(0.0, seconds))
    except queue.Empty:
        return None


def _silent(order: _Order) -> EnvError:
    kind = UnavailableError if order.quick else FetchDeadlineError
    return kind(f"{order.about}: there was no answer in {order.seconds:.3g} s")


def _failure(failed: Sequence[_Order], total: int, released: int) -> EnvError:
    """One error for all, of the kind that tells most: a refusal before silence."""
    errors = [order.error for order in failed if order.error is not None]
    error = next(
        iter(
            [each for each in errors if not isinstance(each, UnavailableError | FetchDeadlineError)]
            + [each for each in errors if isinstance(each, UnavailableError)]
            + errors
        )
    )
    addresses = list(dict.fromkeys(order.address for order in failed))
    shown = ", ".join(addresses[:_MAX_SHOWN]) + (", ..." if len(addresses) > _MAX_SHOWN else "")
    return type(error)(
        f"{error}; {len(failed)} of {total} calls to release failed, {released} references were released: "
        f"what {shown} may hold stays held until it is released again, or its lease or its worker ends",
        code=error.code,
        reason=error.reason,
        metadata={**error.metadata, "addresses": ",".join(addresses), "released": str(released)},
        retry_after=error.retry_after,
    )

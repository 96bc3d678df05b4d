"""One fetch: from a reference to arrays, tried again where that is of use.

Synchronous, in the thread that calls it: a synchronous reader takes about twice the bytes per second of an
asyncio one.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1.training_array_service_pb2 import ArrayDescriptor, FetchRequest

from env_client.errors import ArrayProtocolError, ArraysCorruptError
from env_client.request import PROTOCOL_GENERATION
from env_client.training_arrays.answer import checked_answer, parse_frame
from env_client.training_arrays.body import Body, place
from env_client.training_arrays.map import CAN_MAP, TRANSPORT, OfferRefused, take_offer
from env_client.training_arrays.status import Retries, call_error, lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from env_client.training_arrays.answer import Answer, Ask
    from env_client.training_arrays.body import Out
    from env_client.training_arrays.bounds import CallBounds
    from env_client.training_arrays.links import ArrayLink, ArrayLinks
    from env_client.training_arrays.progress import ProgressPart

_LOG: Final = logging.getLogger(__name__)


class ArrayFetcher:
    """Fetches over the links of one client. Thread-safe.

    Args:
        links: the channels.
        lost_seconds: how long a worker that cannot be reached is tried again.
        shared_memory: whether a worker's memory is mapped where it is on this host.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        links: ArrayLinks,
        lost_seconds: float,
        shared_memory: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._lost_seconds = lost_seconds
        self._shared_memory = shared_memory and CAN_MAP
        self._clock = clock
        # Addresses whose files cannot be opened here. Only added to; two threads may both find out.
        self._foreign: set[str] = set()

    def fetch(
        self, ask: Ask, out: Out, progress: ProgressPart, bounds: CallBounds
    ) -> dict[str, NDArray[Any]]:
        """The arrays, by name, in the order in which they came.

        Args:
            ask: which.
            out: arrays to read into, from `check_out`. After an error their contents are anything.
            progress: is told what has come.
            bounds: how long it may take.

        Raises:
            EnvError: see `SyncArrayClient.fetch`.
        """
        address = ask.reference.address
        has_deadline = bounds.seconds_left() is not None
        retries = Retries(self._lost_seconds, waits_in_queue=has_deadline, clock=self._clock)
        is_refused = is_foreign = False
        with self._links.to(address) as link:
            while True:
                attempt = _Attempt(link, ask, out, bounds, progress)
                maps = self._shared_memory and not is_refused and address not in self._foreign
                try:
                    arrays = attempt.run([TRANSPORT] if maps else [])
                except OfferRefused as why:
                    # Not the exception itself, which keeps half-read arrays alive.
                    is_refused, is_foreign = True, why.is_foreign
                    _LOG.debug("%s: streamed, as the offered memory was not taken: %s", ask.reference, why)
                except (ArrayProtocolError, ArraysCorruptError) as wrong:
                    raise type(wrong)(f"{ask.reference}: {wrong}") from wrong
                except grpc.RpcError as broken:
                    bounds.check(ask.reference)  # Its own end says more than how gRPC tells of it.
                    error = call_error(broken, ask.reference)
                    delay = retries.delay(error, attempt.reached)
                    if delay is None:
                        raise lost(error, self._lost_seconds) from broken
                    bounds.wait(delay)
                else:
                    if is_foreign:
                        # Only now: a file that is not there may also be one that was just released.
                        _LOG.info("%s: its memory is not of this host or user, arrays are streamed", address)
                        self._foreign.add(address)
                    return arrays


class _Attempt:
    """One call of Fetch. `reached` counts the bytes of its body that have come; -1 before the descriptor."""

    def __init__(
        self, link: ArrayLink, ask: Ask, out: Out, bounds: CallBounds, progress: ProgressPart
    ) -> None:
        self._link = link
        self._ask = ask
        self._out = out
        self._bounds = bounds
        self._progress = progress
        self.reached = -1

    def run(self, transports: list[str]) -> dict[str, NDArray[Any]]:
        """The arrays.

        Raises:
            OfferRefused: by a transport that was asked for, they cannot be had.
            grpc.RpcError: the call ended otherwise than OK.
            EnvError: what came is wrong.
        """
        reference = self._ask.reference
        request = FetchRequest(
            protocol_generation=PROTOCOL_GENERATION,
            instance=reference.instance,
            key=reference.key,
            fields=self._ask.fields,
            token_start=self._ask.start,
            token_end=self._ask.end,
            transports=transports,
        )
        self._bounds.check(reference)
        with self._bounds.calling(self._link.fetch(request, timeout=self._bounds.seconds_left())) as frames:
            answer = self._answer(frames)
            offer = answer.offers.get(TRANSPORT) if transports else None
            arrays = self._read(frames, answer, is_offered=offer is not None)
        if offer is not None:
            parameters = dict(offer.parameters)
            check = functools.partial(self._bounds.check, reference)
            arrays = take_offer(parameters, reference.instance, answer, self._out, check)
        self._progress.reached(answer.body_bytes, answer.body_bytes)
        return arrays

    def _answer(self, frames: Iterator[bytes]) -> Answer:
        frame = next(frames, None)
        descriptor = None if frame is None else parse_frame(frame)
        if not isinstance(descriptor, ArrayDescriptor):
            found = "nothing" if frame is None else "a piece"
            raise ArrayProtocolError(f"{found} came first, expected a descriptor")
        answer = checked_answer(descriptor, self._ask)
        self.reached = 0
        return answer

    def _read(self, frames: Iterator[bytes], answer: Answer, *, is_offered: bool) -> dict[str, NDArray[Any]]:
        """The arrays from the stream; none of them where they were offered on another way."""
        if is_offered:
            if next(frames, None) is not None:
                raise ArrayProtocolError("pieces came after an offer that was asked for")
            return {}
        arrays = {spec.name: place(spec, self._out) for spec in answer.arrays}
        body = Body(answer, arrays.values())
        for frame in frames:
            piece = parse_frame(frame)
            if isinstance(piece, ArrayDescriptor):
                raise ArrayProtocolError("a second descriptor came")
            body.put(piece)
            self.reached = body.received_bytes
            if self.reached < answer.body_bytes:  # The last word is said when all was checked.
                self._progress.reached(self.reached, answer.body_bytes)
        body.check()
        return arrays

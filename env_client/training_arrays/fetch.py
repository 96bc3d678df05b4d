"""One fetch: from a reference to arrays, tried again where that is of use.

Synchronous, in the thread that calls it: a synchronous reader takes about twice the bytes per second of an
asyncio one.
"""

from __future__ import annotations

import functools
import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import grpc
from envtrio.v1.training_array_service_pb2 import ArrayDescriptor, FetchRequest

from env_client.errors import (
    ArrayProtocolError,
    ArraysCorruptError,
    EnvError,
    FetchDeadlineError,
    UnavailableError,
)
from env_client.request import PROTOCOL_GENERATION
from env_client.training_arrays.answer import checked_answer, parse_frame
from env_client.training_arrays.body import Body, place
from env_client.training_arrays.lost import QUICK_SECONDS
from env_client.training_arrays.map import CAN_MAP, TRANSPORT, OfferRefused, offered_file
from env_client.training_arrays.stalls import FIRST_SECONDS, STALL_SECONDS, StalledError, Stalls
from env_client.training_arrays.status import Retries, call_error, lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from env_client.training_arrays.answer import Answer, Ask
    from env_client.training_arrays.body import Out
    from env_client.training_arrays.bounds import CallBounds
    from env_client.training_arrays.links import ArrayLink, ArrayLinks
    from env_client.training_arrays.lost import LostWorkers
    from env_client.training_arrays.progress import ProgressPart
    from env_client.training_arrays.reference import ArrayReference

_LOG: Final = logging.getLogger(__name__)


class ArrayFetcher:
    """Fetches over the links of one client. Thread-safe.

    Args:
        links: the channels.
        lost: workers that could not be reached lately; for those one quick try must do.
        lost_seconds: how long another worker that cannot be reached is tried again.
        shared_memory: whether a worker's memory is mapped where it is on this host.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        links: ArrayLinks,
        lost: LostWorkers,
        lost_seconds: float,
        shared_memory: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._links = links
        self._lost = lost
        self._stalls = Stalls()
        self._lost_seconds = lost_seconds
        self._shared_memory = shared_memory and CAN_MAP
        self._clock = clock
        # Addresses whose files cannot be opened here. Only added to; two threads may both find out.
        self._foreign: set[str] = set()

    def close(self) -> None:
        """Nothing is fetched any more."""
        self._stalls.close()

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
        address, instance = ask.reference.address, ask.reference.instance
        has_deadline = bounds.seconds_left() is not None
        retries = Retries(self._lost_seconds, waits_in_queue=has_deadline, clock=self._clock)
        bounds.check(ask.reference)
        if self._lost.has(address, instance):
            self._check_found(ask.reference, bounds)
        is_refused = is_foreign = False
        with self._links.to(address) as link:
            while True:
                attempt = _Attempt(link, ask, out, bounds, progress, self._stalls)
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
                        raise self._ended(error, ask.reference) from broken
                    bounds.wait(delay)
                except StalledError:
                    bounds.check(ask.reference)
                    seconds = FIRST_SECONDS if attempt.reached < 0 else STALL_SECONDS
                    raise FetchDeadlineError(
                        f"{ask.reference}: nothing more came for {seconds:g} s, though the worker's host "
                        "answers: fetch again; if that ends the same way, look into the worker's log"
                    ) from None
                else:
                    if is_foreign:
                        # Only now: a file that is not there may also be one that was just released.
                        _LOG.info("%s: its memory is not of this host or user, arrays are streamed", address)
                        self._foreign.add(address)
                    return arrays

    def _check_found(self, reference: ArrayReference, bounds: CallBounds) -> None:
        """Ask a worker that could not be reached lately whether it is there.

        Not by the fetch itself, which a worker that is there may have wait for its turn.
        """
        left = bounds.seconds_left()
        seconds = QUICK_SECONDS if left is None else min(left, QUICK_SECONDS)
        with (
            self._links.to(reference.address) as link,
            bounds.calling(link.health.future(b"", timeout=seconds)) as call,
        ):
            code = call.code()
            bounds.check(reference)
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                silent = UnavailableError(f"{reference}: there was no answer in {seconds:.3g} s")
                raise self._ended(silent, reference, was_lost=True)
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise self._ended(call_error(call, reference), reference, was_lost=True)
        self._lost.found(reference.address, reference.instance)

    def _ended(self, error: EnvError, reference: ArrayReference, *, was_lost: bool = False) -> EnvError:
        """What it means that no further try is made."""
        if isinstance(error, UnavailableError):
            self._lost.add(reference.address, reference.instance)
            self._links.renew(reference.address)
        return lost(error, self._lost_seconds, was_lost=was_lost)


class _Attempt:
    """One call of Fetch. `reached` counts the bytes of its body that have come; -1 before the descriptor."""

    def __init__(
        self,
        link: ArrayLink,
        ask: Ask,
        out: Out,
        bounds: CallBounds,
        progress: ProgressPart,
        stalls: Stalls,
    ) -> None:
        self._link = link
        self._ask = ask
        self._out = out
        self._bounds = bounds
        self._progress = progress
        self._stalls = stalls
        self.reached = -1

    def run(self, transports: list[str]) -> dict[str, NDArray[Any]]:
        """The arrays.

        Raises:
            StalledError: nothing more came.
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
        with (
            self._bounds.calling(self._link.fetch(request, timeout=self._bounds.seconds_left())) as call,
            closing(self._stalls.frames(call, STALL_SECONDS, FIRST_SECONDS)) as frames,
        ):
            answer = self._answer(frames)
            offer = answer.offers.get(TRANSPORT) if transports else None
            if offer is None:
                arrays = self._read(frames, answer)
            else:
                # Opened at once: when the call has ended, the worker may let go of a file that was released.
                with offered_file(dict(offer.parameters), reference.instance, answer) as file:
                    if next(frames, None) is not None:
                        raise ArrayProtocolError("pieces came after an offer that was asked for")
                    arrays = file.arrays(self._out, functools.partial(self._bounds.check, reference))
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

    def _read(self, frames: Iterator[bytes], answer: Answer) -> dict[str, NDArray[Any]]:
        """The arrays from the stream."""
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

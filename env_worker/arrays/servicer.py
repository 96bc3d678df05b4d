"""TrainingArrayService on a worker: from gRPC calls to its stores and back."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from envtrio.v1 import errors_pb2, training_array_service_pb2

from env_worker.arrays.errors import (
    ArraysNotFoundError,
    FieldIncompleteError,
    TokenRangeError,
    UnknownFieldError,
)
from env_worker.arrays.outflow import FETCH_STALL_SECONDS, RETRY_SECONDS, Outflow, StalledError
from env_worker.arrays.places import Place, Places
from env_worker.arrays.serving import CAPABILITY
from env_worker.arrays.store import Released
from env_worker.request import BIG_REQUEST_BYTES, check_digits, check_generation, check_name, decoded
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from env_worker.arrays.fetch import Fetch
    from env_worker.arrays.serving import ArrayServing, Fetching

logger = logging.getLogger(__name__)

SERVICE_NAME: Final = training_array_service_pb2.DESCRIPTOR.services_by_name["TrainingArrayService"].full_name
MAX_FETCHES: Final = 4096
"""Fetches that are open at once. Most of them wait for a place, which costs some 30 KiB each."""
MAX_STREAMS: Final = 64
"""Fetches that stream at once. Where nobody reads, each was measured to take 4 MiB; when it was ended for
that, 2 MiB until its caller hears of it, and of such there are as many again at the most: some 350 MiB."""
MAX_TURNS: Final = 2
"""Streams that read and write at the same moment: of arrays in memory, and as many of those on a disk. More
bring no more bytes a second, and every call on this worker would wait a millisecond longer for each."""
PATIENCE_SECONDS: Final = 5.0
"""How long a caller may take nothing while others wait for a place."""
MAX_FETCH_BYTES: Final = 64 * 1024
MAX_RELEASE_BYTES: Final = 4 * 2**20
"""Of requests. Who decodes larger ones holds the interpreter, and with it the loop, for seconds."""
MAX_RELEASE_KEYS: Final = 100_000
MEMFD: Final = "memfd"
_IN_PARTS: Final = f"release at most {MAX_RELEASE_KEYS} keys in one call"


class TrainingArrayServicer:
    """Serves the stores of an `ArrayServing`.

    Args:
        stall_seconds: how long a caller of Fetch may take nothing.
        max_fetches: fetches that may be open at once.
        max_streams: how many of them may stream at once.
        patience_seconds: how long a caller may take nothing where others wait to stream.
    """

    def __init__(
        self,
        arrays: ArrayServing,
        *,
        stall_seconds: float = FETCH_STALL_SECONDS,
        max_fetches: int = MAX_FETCHES,
        max_streams: int = MAX_STREAMS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._arrays: Final = arrays
        self._stall_seconds: Final = stall_seconds
        self._max_fetches: Final = max_fetches
        self._fetches = 0
        self._places: Final = Places(max_streams, patience_seconds)
        self._memory_turns: Final = asyncio.Semaphore(MAX_TURNS)
        self._disk_turns: Final = asyncio.Semaphore(MAX_TURNS)

    async def Fetch(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """See TrainingArrayService.Fetch in training_array_service.proto."""
        try:
            await self._fetch(data, context)
        except Exception as error:
            ending = _ending(error)
        else:
            return
        # Here nothing of the fetch is held any more, neither by a place nor by the frames of an exception: a
        # caller that does not read may let the status wait, and gRPC keeps its piece until then.
        with self._places.left_behind() if isinstance(ending, StalledError) else nullcontext():
            await _abort(context, ending)

    async def _fetch(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        if len(data) > MAX_FETCH_BYTES:
            raise _too_large("FetchRequest", "bytes", len(data), MAX_FETCH_BYTES, "ask for less at once")
        request = decoded(training_array_service_pb2.FetchRequest, data)
        check_generation(request.protocol_generation)
        for field in ("instance", "key"):
            check_digits(field, getattr(request, field))
        if request.instance != (ours := self._arrays.home.instance):
            raise Refusal(
                errors_pb2.ERROR_REASON_ARRAYS_LOST,
                f"the reference is of instance {request.instance[:8]}, here is {ours[:8]} now: those arrays "
                "ended with their worker; run the episode again",
                value=request.instance[:8],
                worker=ours[:8],
            )
        if not self._arrays.offered:
            raise Refusal(
                errors_pb2.ERROR_REASON_NOT_OFFERED,
                "this worker's hook keeps no arrays that it could serve; start it with --hook array-keeper",
                capability=CAPABILITY,
            )
        end = request.token_end if request.HasField("token_end") else None
        offering = MEMFD in request.transports
        with self._open():
            fetching = self._arrays.fetching(
                request.key, request.fields, request.token_start, end, offering=offering
            )
            async with fetching as found:
                await self._send(found, context)
        logger.debug(
            "key=%s fetched tokens %d to %d, %d bytes, %s",
            request.key[:8], found.fetch.token_start, found.fetch.token_end, found.fetch.cut.body_bytes,
            "as a stream" if found.offer is None else "to be mapped",
        )  # fmt: skip

    async def _send(self, found: Fetching, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        turns = self._disk_turns if found.fetch.spilled else self._memory_turns
        first = _descriptor(found.fetch, found.offer).SerializeToString()
        if found.offer is not None or not found.fetch.cut.body_bytes:
            await Outflow(context, turns, Place(), self._stall_seconds).send(first, None)
            return
        # Not even the descriptor before: the caller would make room for all of the body, and wait with it.
        async with self._places.place() as place:
            await Outflow(context, turns, place, self._stall_seconds).send(first, found.pieces)

    async def Release(
        self,
        data: bytes,
        context: grpc.aio.ServicerContext[bytes, training_array_service_pb2.ReleaseResponse],
    ) -> training_array_service_pb2.ReleaseResponse:
        """See TrainingArrayService.Release in training_array_service.proto."""
        try:
            if len(data) > MAX_RELEASE_BYTES:
                raise _too_large("ReleaseRequest", "bytes", len(data), MAX_RELEASE_BYTES, _IN_PARTS)
            kind = training_array_service_pb2.ReleaseRequest
            big = len(data) > BIG_REQUEST_BYTES
            request = await asyncio.to_thread(decoded, kind, data) if big else decoded(kind, data)
            check_generation(request.protocol_generation)
            released = await self._release(request)
        except Exception as error:
            await _abort(context, _ending(error))
        return training_array_service_pb2.ReleaseResponse(
            released=released.released, not_found=released.not_found, released_bytes=released.bytes
        )

    async def _release(self, request: training_array_service_pb2.ReleaseRequest) -> Released:
        match request.WhichOneof("target"):
            case "owner":
                check_name("owner", request.owner)
                if not request.owner:
                    raise _invalid("owner", "is empty; name the owner whose arrays are to be freed")
                released = await self._arrays.release_owner(request.owner)
                whose = f"owner={request.owner!r}"
            case "references":
                references = request.references
                if not references.keys:
                    raise _invalid("references", "has no keys; name what is to be freed, or an owner")
                if (count := len(references.keys)) > MAX_RELEASE_KEYS:
                    raise _too_large("references", "keys", count, MAX_RELEASE_KEYS, _IN_PARTS)
                whose = f"keys={references.keys[0][:8]}"
                if references.instance == self._arrays.home.instance:
                    released = await self._arrays.release(references.keys)
                else:
                    released = Released(0, len(references.keys), 0)
            case _:
                raise _invalid("target", "is not set; pass references, or an owner")
        logger.info(
            "%s released %d references of %d bytes, %d were not there",
            whose, released.released, released.bytes, released.not_found,
        )  # fmt: skip
        return released

    @contextmanager
    def _open(self) -> Iterator[None]:
        if self._fetches >= self._max_fetches:
            raise Refusal(
                errors_pb2.ERROR_REASON_QUEUE_FULL,
                f"{self._fetches} fetches are open on this worker, the limit is {self._max_fetches}; fetch "
                f"again in {RETRY_SECONDS:g} s",
                retry_seconds=RETRY_SECONDS,
                value=self._fetches,
                limit=self._max_fetches,
            )
        self._fetches += 1
        try:
            yield
        finally:
            self._fetches -= 1


def _descriptor(fetch: Fetch, offer: Mapping[str, str] | None) -> training_array_service_pb2.FetchResponse:
    cut = fetch.cut
    descriptor = training_array_service_pb2.ArrayDescriptor(
        arrays=[
            training_array_service_pb2.ArrayLayout(
                name=array.name, dtype=array.dtype, shape=array.shape, size_bytes=array.size_bytes
            )
            for array in cut.arrays
        ],
        body_bytes=cut.body_bytes,
        body_crc32c=cut.body_crc32c,
        token_start=fetch.token_start,
        token_end=fetch.token_end,
    )
    if offer is not None:
        descriptor.transports.add(transport=MEMFD, parameters=offer)
    return training_array_service_pb2.FetchResponse(descriptor=descriptor)


def _ending(error: Exception) -> Refusal:
    """What the caller hears of it."""
    match error:
        case Refusal():
            return error.with_traceback(None)
        case ArraysNotFoundError():
            return Refusal(errors_pb2.ERROR_REASON_ARRAYS_NOT_FOUND, str(error))
        case FieldIncompleteError(field=field, hole=hole):
            return Refusal(errors_pb2.ERROR_REASON_ARRAYS_INCOMPLETE, str(error), field=field, hole=hole)
        case TokenRangeError(start=start, end=end, tokens=tokens):
            value = f"{start} to {end}"
            return Refusal(errors_pb2.ERROR_REASON_TOKEN_RANGE, str(error), value=value, limit=tokens)
        case UnknownFieldError(field=field):
            return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, str(error), field="fields", value=field)
    logger.error("reason=INTERNAL a fault of the worker itself, or of its disk", exc_info=error)
    fault = f"{type(error).__name__}: {error}; try again, and report it with the worker's log"
    return Refusal(errors_pb2.ERROR_REASON_INTERNAL, fault)


def _invalid(field: str, problem: str, **metadata: int) -> Refusal:
    return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", field=field, **metadata)


def _too_large(field: str, unit: str, value: int, limit: int, next_step: str) -> Refusal:
    problem = f"has {value} {unit}, the limit is {limit}; {next_step}"
    return _invalid(field, problem, value=value, limit=limit)


async def _abort(context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
    logger.info("reason=%s %s", refusal.reason_name, refusal.message)
    await context.abort(refusal.code, refusal.message, refusal.trailing_metadata())


def method_handlers(servicer: TrainingArrayServicer) -> grpc.GenericRpcHandler:
    """The service's handlers: Fetch writes bytes as they are, and requests are decoded by the handlers, which
    say what is wrong with them."""
    return grpc.method_handlers_generic_handler(
        SERVICE_NAME,
        {
            "Fetch": grpc.unary_stream_rpc_method_handler(servicer.Fetch),
            "Release": grpc.unary_unary_rpc_method_handler(
                servicer.Release,
                response_serializer=training_array_service_pb2.ReleaseResponse.SerializeToString,
            ),
        },
    )

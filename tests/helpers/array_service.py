"""TrainingArrayService on a port of its own in the test's process, and bare calls of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
from envtrio.v1 import training_array_service_pb2, training_array_service_pb2_grpc

from env_worker.arrays.limits import ArrayLimits, Home
from env_worker.arrays.servicer import TrainingArrayServicer, method_handlers
from env_worker.arrays.serving import ArrayServing
from env_worker.arrays.store import ArrayStore
from env_worker.channel_options import SERVER_OPTIONS
from env_worker.domain import Episode, Message, SamplingMask, SamplingParams, TopLogprobs
from tests.helpers.failure import failure_of
from tests.helpers.kept_arrays import RememberingKeeper
from tests.helpers.stub_client import GENERATION, OPTIONS, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from env_worker.hook import EpisodeHook
    from tests.helpers.failure import Failure

SECONDS = 20.0
NARROW = (*OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 * 1024))
"""gRPC takes in what nobody has read yet, the more the faster a connection seems. Here it is little."""
MEMORY = 2**30
LARGE = 40_000
"""Tokens of which no connection takes all bytes while nobody reads: 15 MB."""
Reference = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch brought, and how it ended."""

    descriptor: training_array_service_pb2.ArrayDescriptor | None
    pieces: list[bytes] = field(repr=False)
    failure: Failure | None

    @property
    def body(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the descriptor makes of them."""
        assert self.failure is None, self.failure
        assert self.descriptor is not None
        return laid_out(self.descriptor, self.body)


def laid_out(descriptor: training_array_service_pb2.ArrayDescriptor, body: bytes) -> dict[str, NDArray[Any]]:
    """A body as its arrays."""
    found, offset = {}, 0
    for array in descriptor.arrays:
        part = body[offset : offset + array.size_bytes]
        found[array.name] = np.frombuffer(part, array.dtype).reshape(tuple(array.shape))
        offset += array.size_bytes
    assert offset == len(body) == descriptor.body_bytes
    return found


def fetch_request(reference: Mapping[str, Any], **fields: Any) -> training_array_service_pb2.FetchRequest:
    """A request for all of a reference, but for what `fields` say."""
    values = {
        "protocol_generation": GENERATION,
        "instance": reference["instance"],
        "key": reference["key"],
        **fields,
    }
    return training_array_service_pb2.FetchRequest(**values)


class ArrayCalls:
    """Bare calls of a TrainingArrayService."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = training_array_service_pb2_grpc.TrainingArrayServiceStub(channel)
        self.raw_fetch: Any = channel.unary_stream("/envtrio.v1.TrainingArrayService/Fetch")
        self.raw_release: Any = channel.unary_unary("/envtrio.v1.TrainingArrayService/Release")

    def open(self, reference: Mapping[str, Any], **fields: Any) -> Any:
        """A fetch whose messages nobody has read yet."""
        return self.stub.Fetch(fetch_request(reference, **fields), timeout=SECONDS)

    async def fetch(self, reference: Mapping[str, Any], **fields: Any) -> Fetched:
        """A fetch, read to its end."""
        return await read_on(self.open(reference, **fields))

    async def release(
        self, keys: list[str] | None = None, instance: str = "", owner: str | None = None, **fields: Any
    ) -> tuple[int, int, int] | Failure:
        """References released, not found, and bytes; or the failure."""
        values: dict[str, Any] = {"protocol_generation": GENERATION, **fields}
        if keys is not None:
            values["references"] = training_array_service_pb2.ReleaseReferences(instance=instance, keys=keys)
        if owner is not None:
            values["owner"] = owner
        try:
            request = training_array_service_pb2.ReleaseRequest(**values)
            answer = await self.stub.Release(request, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            return failure_of(error)
        return answer.released, answer.not_found, answer.released_bytes


async def read_on(call: Any) -> Fetched:
    """Read a fetch that nobody has begun to read."""
    descriptor, pieces, failure = None, [], None
    try:
        async for message in call:
            if message.WhichOneof("frame") == "descriptor":
                assert descriptor is None
                descriptor = message.descriptor
            else:
                assert descriptor is not None, "the descriptor comes first"
                pieces.append(message.piece)
    except grpc.aio.AioRpcError as error:
        failure = failure_of(error)
    return Fetched(descriptor, pieces, failure)


class ArrayService:
    """The service, its calls, and the keeper whose store it serves."""

    def __init__(
        self,
        arrays: ArrayServing,
        servicer: TrainingArrayServicer,
        keeper: RememberingKeeper,
        calls: ArrayCalls,
    ) -> None:
        self.arrays = arrays
        self.keeper = keeper
        self.store = keeper.array_store
        self.calls = calls
        self.places = servicer._places
        self._servicer = servicer

    @property
    def busy(self) -> int:
        """Calls of Fetch that are open."""
        return self._servicer._fetches

    def keep(self, tokens: int, *, layers: int = 48, top_k: int = 8, owner: str = "") -> Reference:
        """Keep an episode with one trace of one branch; its reference."""
        return kept(self.keeper, tokens, layers=layers, top_k=top_k, owner=owner)

    async def unread(self, reference: Reference) -> Any:
        """The first fetch of all, begun, and nobody reads it."""
        call = self.calls.open(reference)
        await self.until(lambda: self.store.stats().fetched_bytes >= 2**20)
        return call

    async def until(self, reached: Any) -> None:
        """Wait for what nobody tells."""
        async with asyncio.timeout(SECONDS):
            while not reached():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.001)


def kept(
    keeper: EpisodeHook | ArrayStore, tokens: int, *, layers: int = 48, top_k: int = 8, owner: str = ""
) -> Reference:
    """The reference of a new episode's only branch. Each second token is a sampled one."""
    episode = Episode(new_id(), "test", {}, new_id(), owner, "")
    trace = episode.new_trace()
    random = np.random.default_rng(tokens)
    sampled = tokens // 2
    counts = random.integers(0, 4, sampled, dtype=np.int32)
    counts[:1] = 1
    ids = random.integers(0, 1000, counts.sum(), dtype=np.int32)
    trace.add_node(
        Message.assistant("kept"),
        np.zeros(tokens, np.int32),
        sampled=True,
        mask=np.arange(tokens) % 2 == 1,
        routed_experts=random.integers(1, 255, (tokens, layers, top_k), dtype=np.uint8),
        sampling_mask=SamplingMask(ids=ids, counts=counts),
        top_logprobs=TopLogprobs(ids=ids, logprobs=ids.astype(np.float32), counts=counts),
    )
    if isinstance(keeper, ArrayStore):
        keeper.keep(episode)
    else:
        keeper.keep(episode, SamplingParams())
    [reference] = trace.info["training_arrays"]  # type: ignore[misc]
    assert isinstance(reference, dict)
    return reference


@asynccontextmanager
async def array_service(
    spill: Path | None = None,
    *,
    store: ArrayStore | None = None,
    stall_seconds: float = 60.0,
    max_fetches: int = 1024,
    max_streams: int = 64,
    patience_seconds: float = 60.0,
) -> AsyncIterator[ArrayService]:
    """A service whose keeper holds its arrays in memory, or in the folder `spill`, or in `store`."""
    limits = ArrayLimits(MEMORY) if spill is None else ArrayLimits(0, spill, MEMORY)
    keeper = RememberingKeeper()
    if store is not None:
        keeper.array_store = store
    server = grpc.aio.server(options=SERVER_OPTIONS)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    arrays = ArrayServing(Home(new_id(), address), limits, lambda: keeper)
    arrays.adopt(keeper)
    servicer = TrainingArrayServicer(
        arrays,
        stall_seconds=stall_seconds,
        max_fetches=max_fetches,
        max_streams=max_streams,
        patience_seconds=patience_seconds,
    )
    server.add_generic_rpc_handlers((method_handlers(servicer),))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=NARROW) as channel:
            yield ArrayService(arrays, servicer, keeper, ArrayCalls(channel))
    finally:
        await server.stop(0)
        await arrays.close()
    async with asyncio.timeout(SECONDS):
        while keeper.array_store.stats().open_fetches:  # noqa: ASYNC110  # they are closed in threads
            await asyncio.sleep(0.001)

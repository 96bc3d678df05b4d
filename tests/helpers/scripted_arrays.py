"""A real server on port 0 that serves TrainingArrayService from scripts, for tests of the array clients.

It runs in threads, as `ScriptedService`. A call without a script, or a script that no call used, fails the
test when the service stops.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import google_crc32c
import grpc
import numpy as np
from envtrio.v1.training_array_service_pb2 import (
    ArrayDescriptor,
    ArrayLayout,
    FetchRequest,
    FetchResponse,
    ReleaseRequest,
    ReleaseResponse,
)

from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach, Send, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

_PATIENCE_SECONDS: Final = 20.0
_OPTIONS: Final = (("grpc.so_reuseport", 0),)
INSTANCE: Final = "1" * 32
KEY: Final = "2" * 32

FetchStep: TypeAlias = Send | Reach | Wait | Hang | End


def some_arrays(tokens: int = 6, sampled: int = 3, layers: int = 2) -> dict[str, NDArray[Any]]:
    """The arrays of a branch whose every second token is sampled, with one id more for each."""
    counts = np.arange(1, sampled + 1, dtype="<i4")
    ids = np.arange(counts.sum(), dtype="<i4")
    return {
        "routed_experts": np.arange(tokens * layers * 4, dtype="<u2").reshape(tokens, layers, 4),
        "top_logprobs.ids": ids,
        "top_logprobs.logprobs": -ids.astype("<f4"),
        "top_logprobs.counts": counts,
    }


def dtype_text(array: NDArray[Any]) -> str:
    """A dtype as it crosses."""
    return array.dtype.str.replace("|", "")


def body_of(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """All arrays end to end."""
    return b"".join(array.tobytes() for array in arrays.values())


@dataclass
class Branch:
    """What a scripted worker keeps: arrays of a branch, its reference, and what a fetch of it sends."""

    arrays: dict[str, NDArray[Any]]
    address: str = "127.0.0.1:1"
    tokens: int = 6
    incomplete: dict[str, str] = field(default_factory=dict)

    def reference(self, **changes: Any) -> dict[str, Any]:
        """The reference, but for some of its keys; None leaves one out."""
        whole = {
            "instance": INSTANCE,
            "address": self.address,
            "key": KEY,
            "branch": 3,
            "tokens": self.tokens,
            "sampled": 3,
            "arrays": {
                name: {"dtype": dtype_text(array), "shape": list(array.shape), "bytes": array.nbytes}
                for name, array in self.arrays.items()
            },
            "incomplete": self.incomplete,
            **changes,
        }
        return {name: value for name, value in whole.items() if value is not None}

    def descriptor(self, **changes: Any) -> ArrayDescriptor:
        """The descriptor of all, but for some of its fields."""
        body = body_of(self.arrays)
        whole = {
            "arrays": [
                ArrayLayout(name=name, dtype=dtype_text(array), shape=array.shape, size_bytes=array.nbytes)
                for name, array in self.arrays.items()
            ],
            "body_bytes": len(body),
            "body_crc32c": google_crc32c.value(body),
            "token_end": self.tokens,
            **changes,
        }
        return ArrayDescriptor(**whole)

    def first(self, **changes: Any) -> Send:
        """The first frame."""
        return Send(FetchResponse(descriptor=self.descriptor(**changes)).SerializeToString())

    def pieces(self, size: int = 50) -> list[Send]:
        """The body's frames."""
        body = body_of(self.arrays)
        return [piece(body[begin : begin + size]) for begin in range(0, len(body), size)]

    def answer(self, size: int = 50) -> list[Send]:
        """All frames."""
        return [self.first(), *self.pieces(size)]


def piece(data: bytes) -> Send:
    """A frame with the next bytes."""
    return Send(FetchResponse(piece=data).SerializeToString())


class ScriptedArrays:
    """Serves TrainingArrayService from scripts; a context manager.

    Each Fetch takes the next script of its key, each Release the next line: what it answers, or how it ends.
    A Release without a line frees all the keys.
    """

    def __init__(self, port: int = 0) -> None:
        self.fetches: list[FetchRequest] = []
        self.releases: list[ReleaseRequest] = []
        self.open_fetches = 0
        self.most_open_fetches = 0
        self._scripts: defaultdict[str, deque[tuple[FetchStep, ...]]] = defaultdict(deque)
        self._always: dict[str, tuple[FetchStep, ...]] = {}
        self._release_lines: deque[ReleaseResponse | End | Hang] = deque()
        self._faults: list[str] = []
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(32)
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_handlers(self),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def on_fetch(self, *steps: FetchStep, key: str = KEY) -> None:
        """What the next Fetch of that key gets."""
        self._scripts[key].append(steps)

    def on_each_fetch(self, *steps: FetchStep, key: str = KEY) -> None:
        """What each Fetch of that key gets for which there is no script, however many come."""
        self._always[key] = steps

    def on_release(self, *lines: ReleaseResponse | End | Hang) -> None:
        """What the next Releases get."""
        self._release_lines.extend(lines)

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something that the service knows is so."""
        with self._changed:
            if not self._changed.wait_for(reached, _PATIENCE_SECONDS):
                raise AssertionError(f"waited for {_PATIENCE_SECONDS} s in vain")

    def branch(self, **changes: Any) -> Branch:
        """A branch that is kept here."""
        return Branch(some_arrays(), self.address, **changes)

    def stop(self) -> None:
        """Stop serving, as a worker does that leaves."""
        self._server.stop(0).wait(_PATIENCE_SECONDS)

    def __enter__(self) -> ScriptedArrays:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._pool.shutdown()
        if error is None:
            fetches = sum(map(len, self._scripts.values()))
            if fetches or self._release_lines:
                left = f"{fetches} fetches and {len(self._release_lines)} releases"
                self._faults.append(f"{left} that were expected did not come")
            if self._faults:
                raise AssertionError("; ".join(self._faults))

    def fetch(self, request: FetchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Handler of Fetch."""
        with self._changed:
            self.fetches.append(request)
            scripts = self._scripts[request.key]
            script = scripts.popleft() if scripts else self._always.get(request.key)
            self.open_fetches += 1
            self.most_open_fetches = max(self.open_fetches, self.most_open_fetches)
            self._changed.notify_all()
        try:
            if script is None:
                self._faults.append("a Fetch came for which there is no script")
                context.abort(grpc.StatusCode.INTERNAL, "no script")
                return
            yield from self._played(script, context)
        finally:
            with self._changed:
                self.open_fetches -= 1
                self._changed.notify_all()

    def release(self, request: ReleaseRequest, context: grpc.ServicerContext) -> ReleaseResponse:
        """Handler of Release."""
        with self._changed:
            self.releases.append(request)
            line = self._release_lines.popleft() if self._release_lines else None
            self._changed.notify_all()
        if isinstance(line, End):
            line.abort(context)
        if isinstance(line, Hang):
            self._hang(context)
        if isinstance(line, ReleaseResponse):
            return line
        return ReleaseResponse(released=len(request.references.keys))

    def _played(self, script: tuple[FetchStep, ...], context: grpc.ServicerContext) -> Iterator[bytes]:
        for step in script:
            if isinstance(step, Send):
                assert isinstance(step.message, bytes)
                yield step.message
            elif isinstance(step, Reach):
                step.event.set()
            elif isinstance(step, End):
                step.abort(context)
            elif isinstance(step, Hang):
                self._hang(context)
            elif not step.event.wait(_PATIENCE_SECONDS):
                self._faults.append(f"a fetch waited for {_PATIENCE_SECONDS} s in vain")

    def _hang(self, context: grpc.ServicerContext) -> None:
        gone = threading.Event()
        if context.add_callback(gone.set) and not gone.wait(_PATIENCE_SECONDS):
            self._faults.append(f"a caller was not gone within {_PATIENCE_SECONDS} s")


def _handlers(service: ScriptedArrays) -> grpc.GenericRpcHandler:
    # Fetch answers with bytes, so that a script can send what is no FetchResponse.
    return grpc.method_handlers_generic_handler(
        "envtrio.v1.TrainingArrayService",
        {
            "Fetch": grpc.unary_stream_rpc_method_handler(service.fetch, FetchRequest.FromString, None),
            "Release": grpc.unary_unary_rpc_method_handler(
                service.release, ReleaseRequest.FromString, ReleaseResponse.SerializeToString
            ),
        },
    )

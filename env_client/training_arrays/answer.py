"""What a worker answers to a fetch: frames, and the descriptor, which is checked before it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from envtrio.v1.training_array_service_pb2 import ArrayDescriptor, FetchResponse, TransportOffer
from google.protobuf.message import DecodeError

from env_client.errors import ArrayProtocolError
from env_client.training_arrays.excerpt import excerpt
from env_client.training_arrays.reference import ROUTED_EXPERTS, ArraySpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from env_client.training_arrays.reference import ArrayReference

_PIECE_TAG: Final = 0x12  # Field 2, length-delimited: FetchResponse.piece.


@dataclass(frozen=True, slots=True)
class Ask:
    """What is fetched: fields of a branch's tokens from `start`, before `end`. No fields: all complete."""

    reference: ArrayReference
    fields: tuple[str, ...]
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the branch's tokens."""
        return (self.start, self.end) == (0, self.reference.tokens)

    @property
    def whole(self) -> dict[str, ArraySpec]:
        """The arrays as they were for the whole branch."""
        return self.reference.selected(self.fields)

    @property
    def estimated_bytes(self) -> int:
        """About how many bytes will come; exact for a whole branch."""
        size = sum(spec.size_bytes for spec in self.whole.values())
        return size if self.is_whole else size * (self.end - self.start) // self.reference.tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """A descriptor that fits what was asked for. `offers` are other ways to the bytes, by transport."""

    arrays: tuple[ArraySpec, ...]
    body_bytes: int
    body_crc32c: int
    offers: Mapping[str, TransportOffer]


def parse_frame(frame: bytes) -> ArrayDescriptor | NDArray[np.uint8]:
    """A frame's descriptor or its piece, a view of the frame.

    Raises:
        ArrayProtocolError: it is neither.
    """
    # Pieces are found by hand: parsing them as messages would copy each once more.
    start = _piece_start(frame)
    if start is not None:
        return np.frombuffer(frame, np.uint8)[start:]
    try:
        response = FetchResponse.FromString(frame)
    except DecodeError as error:
        raise ArrayProtocolError(f"a frame of {len(frame)} bytes is no FetchResponse: {error}") from error
    kind = response.WhichOneof("frame")
    if kind == "descriptor":
        return response.descriptor
    if kind == "piece":
        return np.frombuffer(response.piece, np.uint8)
    raise ArrayProtocolError(f"a frame of {len(frame)} bytes holds neither a descriptor nor a piece")


def checked_answer(descriptor: ArrayDescriptor, ask: Ask) -> Answer:
    """What the descriptor says, if it fits what was asked for. Nothing was allocated before.

    Raises:
        ArrayProtocolError: it contradicts the request, the reference, or itself.
    """
    whole = ask.whole
    found = (descriptor.token_start, descriptor.token_end)
    if found != (ask.start, ask.end):
        raise _wrong("token range", found, (ask.start, ask.end))
    names = [layout.name for layout in descriptor.arrays]
    if sorted(names) != sorted(whole):
        raise _wrong("arrays", names, list(whole))
    arrays = []
    for layout in descriptor.arrays:
        expected = whole[layout.name]
        spec = ArraySpec(layout.name, expected.dtype, tuple(layout.shape))
        if layout.dtype != expected.dtype.str.replace("|", ""):
            raise _wrong(f"dtype of {layout.name}", layout.dtype, expected.dtype.str)
        if not _is_part(spec, expected, ask):
            raise _wrong(f"shape of {layout.name}", list(spec.shape), f"a part of {list(expected.shape)}")
        if layout.size_bytes != spec.size_bytes:
            raise _wrong(f"size_bytes of {layout.name}", layout.size_bytes, spec.size_bytes)
        arrays.append(spec)
    body_bytes = sum(spec.size_bytes for spec in arrays)
    if descriptor.body_bytes != body_bytes:
        raise _wrong("body_bytes", descriptor.body_bytes, body_bytes)
    offers = {offer.transport: offer for offer in descriptor.transports}
    return Answer(tuple(arrays), body_bytes, descriptor.body_crc32c, offers)


def _is_part(spec: ArraySpec, whole: ArraySpec, ask: Ask) -> bool:
    """Whether an array of that shape can be what the range selects of the whole one."""
    if ask.is_whole:
        return spec.shape == whole.shape
    if len(spec.shape) != len(whole.shape) or spec.shape[1:] != whole.shape[1:]:
        return False
    if spec.name == ROUTED_EXPERTS:
        return spec.shape[0] == ask.end - ask.start
    most = whole.shape[0]
    return spec.shape[0] <= (min(most, ask.end - ask.start) if spec.name.endswith(".counts") else most)


def _piece_start(frame: bytes) -> int | None:
    """Where the piece begins, of a frame that is nothing but one."""
    if not frame or frame[0] != _PIECE_TAG:
        return None
    length, position = 0, 1
    for shift in range(0, 35, 7):
        if position >= len(frame):
            return None
        byte = frame[position]
        length |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return position if position + length == len(frame) else None
    return None


def _wrong(what: str, found: Any, expected: Any) -> ArrayProtocolError:
    return ArrayProtocolError(
        f"the descriptor's {what} is {excerpt(found)}, expected {expected}; nothing was allocated; report it "
        "with the versions of worker and client"
    )

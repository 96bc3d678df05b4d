"""The training arrays of a node, and how array arguments are checked.

Two rules hold everywhere in the domain. Small per-token streams (`token_ids`, `mask`, ...) are copied,
because they are streamed from another thread and must never change again. Training arrays are large, so they
are taken over without a copy where their dtype already fits: a caller that hands one over must not write to
it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Int32Array: TypeAlias = npt.NDArray[np.int32]
Float32Array: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
RoutedExperts: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

TRAINING_ARRAY_FIELDS: Final = ("routed_experts", "sampling_mask", "top_logprobs")
"""Node fields that never cross the stream: they reach the trainer through the episode hook only."""

_INT32: Final = np.dtype(np.int32)
_FLOAT32: Final = np.dtype(np.float32)
_BOOL: Final = np.dtype(np.bool_)
_KINDS: Final = {_INT32: "iu", _FLOAT32: "fiu", _BOOL: "biu"}


def int32_vector(values: npt.ArrayLike, field: str, *, copy: bool = True) -> Int32Array:
    """`values` as a read-only int32 vector; ValueError if one is not an integer in the int32 range."""
    return _vector(values, _INT32, field, copy=copy)


def float32_vector(values: npt.ArrayLike, field: str, *, copy: bool = True) -> Float32Array:
    """`values` as a read-only float32 vector; ValueError if they are not real numbers."""
    return _vector(values, _FLOAT32, field, copy=copy)


def bool_vector(values: npt.ArrayLike, field: str) -> BoolArray:
    """`values` as a read-only bool vector; integers must be 0 or 1. ValueError otherwise."""
    return _vector(values, _BOOL, field, copy=True)


def uniform_bools(value: bool, length: int) -> BoolArray:
    """A read-only bool vector of `length` times `value`."""
    return np.frombuffer((b"\1" if value else b"\0") * length, _BOOL)


def routed_experts_array(values: Any, rows: int, field: str = "routed_experts") -> RoutedExperts:
    """`values` as a read-only uint8 or uint16 array `[rows, layers, top_k]`.

    Other integer dtypes are narrowed to the smallest of the two that holds every expert id. ValueError
    otherwise.
    """
    array = np.asarray(values)
    if array.ndim != 3 or array.shape[0] != rows:
        raise ValueError(
            f"{field} has shape {array.shape}, expected ({rows}, layers, top_k): one row for each of "
            f"the node's {rows} tokens; pad or cut the routing rows to its token_ids"
        )
    if array.dtype not in (np.uint8, np.uint16):
        if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() <= 0xFFFF):
            raise ValueError(
                f"{field} of dtype {array.dtype} does not hold expert ids from 0 to 65535; pass uint8, or "
                "uint16 where the model has more than 256 experts"
            )
        array = array.astype(np.uint8 if not array.size or array.max() <= 0xFF else np.uint16)
    return _read_only(array)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingMask:
    """For each sampled token, the token ids that survived the sampling filters, in CSR form.

    `ids` int32 `[counts.sum()]` flat, `counts` int32 `[sampled tokens]`. Both become read-only; integers of
    other dtypes are converted. ValueError when they do not fit each other.
    """

    ids: Int32Array
    counts: Int32Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", int32_vector(self.ids, "sampling_mask.ids", copy=False))
        object.__setattr__(self, "counts", int32_vector(self.counts, "sampling_mask.counts", copy=False))
        _check_counts("sampling_mask", self.ids, self.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.ids.nbytes + self.counts.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class TopLogprobs:
    """For each sampled token, the head of the sampler's distribution, in CSR form.

    `ids` int32 and `logprobs` float32, both `[counts.sum()]` flat, `counts` int32 `[sampled tokens]`. All
    become read-only; other numeric dtypes are converted. ValueError when they do not fit each other.
    """

    ids: Int32Array
    logprobs: Float32Array
    counts: Int32Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", int32_vector(self.ids, "top_logprobs.ids", copy=False))
        object.__setattr__(
            self, "logprobs", float32_vector(self.logprobs, "top_logprobs.logprobs", copy=False)
        )
        object.__setattr__(self, "counts", int32_vector(self.counts, "top_logprobs.counts", copy=False))
        _check_counts("top_logprobs", self.ids, self.counts)
        if len(self.logprobs) != len(self.ids):
            raise ValueError(
                f"top_logprobs.logprobs has length {len(self.logprobs)}, expected {len(self.ids)}: one for "
                "each of top_logprobs.ids"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.ids.nbytes + self.logprobs.nbytes + self.counts.nbytes


def _check_counts(field: str, ids: Int32Array, counts: Int32Array) -> None:
    if counts.size and counts.min() < 0:
        raise ValueError(f"{field}.counts holds {counts.min()}, expected 0 or more for each sampled token")
    total = int(counts.sum(dtype=np.int64))
    if total != len(ids):
        raise ValueError(f"{field}.ids has length {len(ids)}, expected {total}: the sum of {field}.counts")


def _vector(values: npt.ArrayLike, dtype: np.dtype[Any], field: str, *, copy: bool) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:  # ragged lists, objects
        raise ValueError(f"{field} is not a flat sequence of numbers: {error}") from error
    if array.ndim != 1:
        raise ValueError(f"{field} has shape {array.shape}, expected one dimension; flatten it")
    if array.dtype == dtype:
        # Whatever has a buffer (an array, a tensor, a memoryview) may be shared with the caller; bytes are
        # not, and nobody can make them writable again.
        return np.frombuffer(_bytes(array), dtype) if copy else _read_only(array)
    if array.size and array.dtype.kind not in _KINDS[dtype]:
        raise ValueError(
            f"{field} has dtype {array.dtype}, expected {dtype} or a dtype that converts to it exactly"
        )
    if dtype is _FLOAT32:
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        converted.setflags(write=False)
        return converted
    converted = array.astype(dtype)
    wrong = converted != array  # astype wraps integers silently
    if np.count_nonzero(wrong):
        raise ValueError(
            f"{field} holds {array[wrong][0]}, which {dtype} cannot hold; check what produced it"
        )
    converted.setflags(write=False)
    return converted


def _bytes(array: npt.NDArray[Any]) -> bytes:
    data: bytes = array.tobytes()
    if array.dtype == _BOOL and data.strip(b"\0\1"):
        # Whatever memory was taken for bools: numpy calls any byte but 0 True, on the wire True is 1.
        data = (np.frombuffer(data, np.uint8) != 0).tobytes()
    return data


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # A view, so that the caller's own array object keeps its flags.
    view = array.view()
    view.flags.writeable = False
    return view

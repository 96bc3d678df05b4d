"""A node of a trace: one message and the tokens that it adds."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain.arrays import (
    TRAINING_ARRAY_FIELDS,
    SamplingMask,
    TopLogprobs,
    bool_vector,
    float32_vector,
    int32_vector,
    routed_experts_array,
    uniform_bools,
)
from env_worker.domain.messages import Message
from env_worker.domain.records import check_time, check_type
from env_worker.domain.routing import Routing
from env_worker.domain.text import clean_text, decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from env_worker.domain.arrays import BoolArray, Float32Array, Int32Array, RoutedExperts


MAX_HOLE_TEXT: Final = 500
"""Characters of a hole's reason that are kept."""


class Node:
    """One message, the tokens that it adds, and their training arrays.

    The streamed part never changes after construction, because another thread reads it: assigning to it
    raises AttributeError, and its arrays are read-only copies. The training arrays and `holes` may be set
    again or dropped.

    - `parent`: index of an earlier node of the same trace, None at a root
    - `token_ids` int32 `[n]`, `mask` bool `[n]` (True: sampled by the model, that is, trainable)
    - `is_content` bool `[n]`, or empty where unknown (True: content, not template or tool-call syntax)
    - `logprobs` float32 `[mask.sum()]`: of the sampled tokens only, or empty where the engine gave none
    - `sampled`: whether the model wrote this message; `created_at`: unix seconds
    - `tools_json`: JSON array of the tools offered from here on, usually at a root; "" elsewhere
    - `routed_experts` uint8 or uint16 `[n, layers, top_k]`; `sampling_mask`, `top_logprobs`: `counts` of
      length `mask.sum()`; each None where the engine gave none
    - `holes`: of each field (a training array, "logprobs", ...) that was asked for and is not here, why. Not
      streamed. Texts that UTF-8 cannot carry are mended and those over 500 characters cut

    Without `mask`, all tokens count as sampled if the node is `sampled`, else none. ValueError naming the
    field, the length found and the length expected.
    """

    __slots__ = (
        "_holes", "_routing", "created_at", "is_content", "logprobs", "mask", "message", "parent", "sampled",
        "sampled_tokens", "sampling_mask", "token_ids", "tools_json", "top_logprobs",
    )  # fmt: skip

    message: Message
    parent: int | None
    token_ids: Int32Array
    mask: BoolArray
    is_content: BoolArray
    logprobs: Float32Array
    sampled: bool
    sampled_tokens: int
    """How many of the tokens the model sampled: `mask.sum()`."""
    created_at: float
    tools_json: str
    sampling_mask: SamplingMask | None
    top_logprobs: TopLogprobs | None
    _routing: Routing | None
    _holes: dict[str, str]

    def __init__(
        self,
        message: Message,
        token_ids: npt.ArrayLike = (),
        *,
        parent: int | None = None,
        sampled: bool = False,
        mask: npt.ArrayLike | None = None,
        is_content: npt.ArrayLike | None = None,
        logprobs: npt.ArrayLike | None = None,
        created_at: float | None = None,
        tools_json: str = "",
        routed_experts: npt.NDArray[Any] | None = None,
        sampling_mask: SamplingMask | None = None,
        top_logprobs: TopLogprobs | None = None,
        holes: Mapping[str, str] | None = None,
    ) -> None:
        check_type(message, Message, "node's message")
        tokens = int32_vector(token_ids, "token_ids")
        count = len(tokens)
        if mask is None:
            flags = uniform_bools(bool(sampled), count)
            trainable = count if sampled else 0
        else:
            flags = bool_vector(mask, "mask")
            _check_length("mask", flags, count, "one for each of token_ids")
            trainable = int(np.count_nonzero(flags))
        content = _NO_BOOLS if is_content is None else bool_vector(is_content, "is_content")
        if len(content):
            _check_length("is_content", content, count, "one for each of token_ids, or none at all")
        values = _NO_FLOATS if logprobs is None else float32_vector(logprobs, "logprobs")
        if len(values):
            _check_length("logprobs", values, trainable, "one for each True in mask, or none at all")
        if trainable and not sampled:
            raise ValueError(
                f"mask marks {trainable} tokens as sampled, expected 0 of a node with sampled=False"
            )
        if tools_json:
            decode_json(tools_json, "tools_json", list)
        created = time.time() if created_at is None else created_at
        check_time(created, "node's created_at")
        _set(self, "message", message)
        _set(self, "parent", parent)
        _set(self, "token_ids", tokens)
        _set(self, "mask", flags)
        _set(self, "is_content", content)
        _set(self, "logprobs", values)
        _set(self, "sampled", bool(sampled))
        _set(self, "sampled_tokens", trainable)
        _set(self, "created_at", created)
        _set(self, "tools_json", tools_json)
        _set(self, "_routing", None)
        _set(self, "sampling_mask", None)
        _set(self, "top_logprobs", None)
        _set(self, "_holes", _NO_HOLES)
        if holes:
            self.holes = holes
        if routed_experts is not None:
            self.routed_experts = routed_experts
        if sampling_mask is not None:
            self.sampling_mask = sampling_mask
        if top_logprobs is not None:
            self.top_logprobs = top_logprobs

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _NOT_STREAMED:
            raise AttributeError(
                f"node field {name!r} is streamed and cannot change after add_node; "
                "add a new node on another branch"
            )
        if value is not None and name in ("sampling_mask", "top_logprobs"):
            expected = SamplingMask if name == "sampling_mask" else TopLogprobs
            if not isinstance(value, expected):
                raise TypeError(f"{name} is of type {type(value).__name__}, expected {expected.__name__}")
            _check_length(f"{name}.counts", value.counts, self.sampled_tokens, "one for each True in mask")
        _set(self, name, value)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        # Copying and unpickling would otherwise go through __setattr__.
        for name, value in state[1].items():
            _set(self, name, value)

    def __repr__(self) -> str:
        return (
            f"Node({self.message.role}, parent={self.parent}, tokens={len(self.token_ids)}, "
            f"sampled={self.sampled_tokens}, array_bytes={self.array_bytes})"
        )

    @property
    def routed_experts(self) -> RoutedExperts | None:
        """Read-only. Makes the whole array where rows were repaired since it was last read."""
        routing = self._routing
        return None if routing is None else routing.whole()

    @routed_experts.setter
    def routed_experts(self, value: RoutedExperts | None) -> None:
        routing = None if value is None else Routing(routed_experts_array(value, len(self.token_ids)))
        _set(self, "_routing", routing)

    @property
    def holes(self) -> Mapping[str, str]:
        """Read-only."""
        return MappingProxyType(self._holes)

    @holes.setter
    def holes(self, value: Mapping[str, str]) -> None:
        kept = {field: clean_text(str(why))[:MAX_HOLE_TEXT] for field, why in value.items()}
        _set(self, "_holes", kept or _NO_HOLES)

    @property
    def routing(self) -> Routing | None:
        """`routed_experts` for who needs no whole array."""
        return self._routing

    def drop_arrays(self) -> None:
        """Forget the three training arrays, and why some are not there; the streamed part stays."""
        for name in TRAINING_ARRAY_FIELDS:
            _set(self, name, None)
        _set(self, "_holes", _NO_HOLES)

    def repair_routing(self, row: int, values: npt.NDArray[Any]) -> None:
        """Replace rows of `routed_experts` from `row` on by `values` `[rows, layers, top_k]` (or one row,
        2-D).

        `routed_experts` is another array from then on, wider where an id needs it: whoever took the old one
        keeps what it saw. `values` are copied. ValueError if there is no routing, or they do not fit it.
        """
        current = self._routing
        if current is None:
            raise ValueError(
                f"node has no routed_experts, so row {row} cannot be repaired; set the whole array"
            )
        rows = np.asarray(values)
        if rows.ndim == 2:
            rows = rows[np.newaxis]
        if rows.ndim != 3 or rows.shape[1:] != current.shape[1:] or not 0 <= row <= len(current) - len(rows):
            raise ValueError(
                f"repair of shape {rows.shape} at row {row} does not fit routed_experts of shape "
                f"{current.shape}; pass whole rows that lie inside it"
            )
        rows = routed_experts_array(rows, len(rows), "repair")
        if len(rows):
            _set(self, "_routing", current.repaired(row, rows))

    @property
    def array_bytes(self) -> int:
        """Bytes of the training arrays that this node holds."""
        arrays = (self._routing, self.sampling_mask, self.top_logprobs)
        return sum(array.nbytes for array in arrays if array is not None)


_set = object.__setattr__
_NOT_STREAMED: Final = frozenset({*TRAINING_ARRAY_FIELDS, "holes"})
_NO_HOLES: Final[dict[str, str]] = {}
_NO_BOOLS: Final = bool_vector((), "is_content")
_NO_FLOATS: Final = float32_vector((), "logprobs")


def _check_length(field: str, found: npt.NDArray[Any], expected: int, why: str) -> None:
    if len(found) != expected:
        raise ValueError(f"{field} has length {len(found)}, expected {expected}: {why}")

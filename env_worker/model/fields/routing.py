"""Routing rows, in the encodings that engines have for them.

Which of them is read follows from the dialect and from the JSON type of what came, never from its content.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from env_worker.domain.arrays import routed_experts_array
from env_worker.model.fields.json_values import MAX_INT32, AbsentError, FieldError, integers, only, shown
from env_worker.model.fields.npy import from_base64, from_bytes, from_npy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from env_worker.domain import RoutedExperts
    from env_worker.model.dialects.base import EngineOptions

Placed: TypeAlias = "tuple[int, RoutedExperts]"
"""The position of the first row in prompt and sampled tokens as one sequence, and the rows `[rows, layers,
top_k]`."""

KEY: Final = "routed_experts"
_INT32: Final = "<i4"
_MAX_EXPERT: Final = 0xFFFF
_MAX_ROW_IDS: Final = 1 << 16
"""Some hundred times what models have. Without rows no bytes bear out what a shape says."""


def vllm_rows(value: Any, prompt_value: Any, options: EngineOptions, *, tokens: int, start: int) -> Placed:
    """Rows of a sequence of `tokens` (prompt and sampled), of which those from `start` on were asked for.

    `value` is an `.npy` file in base64 (vLLM 0.22 and later), or an object `{data, shape, dtype, start}` with
    plain bytes in base64 (Dynamo), or nested lists (vLLM 0.21), of the sampled part behind `prompt_value`. An
    engine that does not know of `start` gives the whole sequence, as the number of rows tells. FieldError if
    there is anything else.
    """
    if value is None:
        raise AbsentError(f"the response has no {KEY}; start vLLM with --enable-return-routed-experts")
    if isinstance(value, str):
        return _placed(from_npy(from_base64(value, KEY), KEY), options, tokens, start)
    if isinstance(value, list):
        lists = value if prompt_value is None else [*_rows_of(prompt_value), *value]
        return _placed(_from_lists(lists), options, tokens, start)
    if isinstance(value, dict):
        rows, told = _from_object(value)
        return _placed(rows, options, tokens, start if told is None else told, told is not None)
    raise FieldError(f"{KEY} is {shown(value)}, expected base64, an object or lists")


def sglang_rows(value: Any, options: EngineOptions, *, tokens: int, start: int) -> Placed:
    """The same of SGLang: `value` is int32, little-endian, in base64, without a shape: `options` has it."""
    if value is None:
        raise AbsentError(f"the response has no {KEY}; start SGLang with --enable-return-routed-experts")
    if not isinstance(value, str):
        raise FieldError(f"{KEY} is {shown(value)}, expected base64")
    if options.routing_shape is None:
        raise FieldError(
            f"SGLang sends {KEY} without a shape; tell the worker the model's with --model-routing-shape "
            "LAYERSxTOP_K"
        )
    layers, top_k = options.routing_shape
    data = from_base64(value, KEY)
    row_bytes = 4 * layers * top_k
    if len(data) % row_bytes:
        raise FieldError(
            f"{KEY} has {len(data)} bytes, which are no whole rows of {layers} layers x {top_k} experts of 4 "
            "bytes; check --model-routing-shape"
        )
    rows = from_bytes(data, _INT32, [len(data) // row_bytes, layers, top_k], KEY)
    return _placed(rows, options, tokens, start)


def check_experts(rows: NDArray[Any], options: EngineOptions) -> None:
    """FieldError if `rows` `[rows, layers, top_k]` are not of the model that `options` tell, or hold nothing
    at all."""
    if options.routing_shape not in (None, rows.shape[1:]):
        raise FieldError(
            f"{KEY} has (layers, top_k) {rows.shape[1:]}, but the worker was told {options.routing_shape} "
            "(--model-routing-shape)"
        )
    if not rows.size:
        return
    if not rows.any():
        raise FieldError(f"{KEY} is all zero in {len(rows)} rows: the engine has not recorded it")
    most = _MAX_EXPERT if options.experts is None else options.experts - 1
    if rows.dtype.kind == "u" and np.iinfo(rows.dtype).max <= most:
        return
    if not (rows.min() >= 0 and rows.max() <= most):
        wrong = rows.min() if rows.min() < 0 else rows.max()
        raise FieldError(f"{KEY} holds expert {wrong}, expected 0 to {most}")


def _placed(
    rows: NDArray[Any], options: EngineOptions, tokens: int, start: int, told: bool = False
) -> Placed:
    """`rows`, checked, with the position of the first. `told`: the engine says itself that it is `start`."""
    row_ids = rows.shape[1] * rows.shape[2]
    if not 0 < row_ids <= _MAX_ROW_IDS:
        raise FieldError(
            f"{KEY} has shape {rows.shape}, expected (rows, layers, top_k) with 1 to {_MAX_ROW_IDS} "
            "experts a row"
        )
    whole = tokens - 1
    if len(rows) != whole - start:
        if told or len(rows) != whole:
            raise FieldError(f"{KEY} has {len(rows)} rows, expected {_expected_rows(tokens, start, told)}")
        start = 0
    check_experts(rows, options)
    if not rows.size:
        return start, np.empty(rows.shape, np.uint8)
    return start, routed_experts_array(rows, len(rows))


def _expected_rows(tokens: int, start: int, told: bool) -> str:
    whole = tokens - 1
    why = f"all {tokens} tokens but the last have one"
    if start > whole:
        whose = "the engine says it begins" if told else "they were asked for"
        return f"{whole} from position 0: {why}, and {whose} at {start}, which is behind them"
    others = "" if told or not start else f", or {whole} from position 0"
    return f"{whole - start} from position {start}{others}: {why}"


def _from_object(value: dict[str, Any]) -> tuple[NDArray[Any], int | None]:
    data, shape, dtype, start = (value.get(key) for key in ("data", "shape", "dtype", "start"))
    if not isinstance(data, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise FieldError(f"{KEY} is an object without data, shape and dtype")
    if start is not None and (type(start) is not int or not 0 <= start <= MAX_INT32):
        raise FieldError(f"{KEY} has the start {shown(start)}, expected 0 or more")
    lengths = integers(shape, f"{KEY}.shape").tolist()
    return from_bytes(from_base64(data, KEY), dtype, lengths, KEY), start


def _from_lists(rows: list[Any]) -> NDArray[Any]:
    """Nested lists `[rows][layers][top_k]`."""
    shape = [len(rows)]
    for _ in range(2):
        if not only(rows, list) or len(set(map(len, rows))) > 1:
            raise FieldError(f"{KEY} is not lists of equal length, row by row and layer by layer")
        shape.append(len(rows[0]) if rows else 0)
        rows = list(chain.from_iterable(rows))
    if shape[0] == 0:
        raise FieldError(f"{KEY} is an empty list")
    return integers(rows, KEY).reshape(shape)


def _rows_of(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FieldError(f"prompt_{KEY} is {shown(value)}, expected lists")
    return value

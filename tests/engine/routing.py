"""Rows of routed experts on the wire."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.engine.quirks import Quirk
from tests.engine.values import expected_routing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.engine.profiles import Profile, Served
    from tests.engine.turn import Turn


def routing_rows(turn: Turn, served: Served, start: int) -> NDArray[Any] | None:
    """Rows of positions from `start` to the last but one of prompt and answer, as an engine has them; None
    where it has none."""
    if not served.routed_experts or turn.has(Quirk.ROUTING_MISSING):
        return None
    end = turn.length - 1 - turn.has(Quirk.ROUTING_SHORT) + turn.has(Quirk.ROUTING_LONG)
    start = 0 if turn.has(Quirk.ROUTING_WHOLE) else start
    rows = expected_routing(np.arange(start, max(end, start)), served.layers, served.top_k, served.experts)
    if turn.has(Quirk.ROUTING_ZERO):
        rows[:] = 0
    if len(rows) and turn.has(Quirk.ROUTING_EXPERT_TOO_LARGE):
        rows = rows.astype(np.uint16)
        rows[-1, -1, -1] = served.experts
    if turn.has(Quirk.ROUTING_FLOAT):
        rows = rows.astype(np.float32)
    if turn.has(Quirk.ROUTING_FLAT):
        rows = rows.reshape(len(rows), served.layers * served.top_k)
    return rows


def npy_routing(turn: Turn, profile: Profile, served: Served, start: int) -> Any:
    """vLLM from 0.22 on: base64 of a whole npy file."""
    if (rows := routing_rows(turn, served, start)) is None:
        return None
    if profile.routing_int32 and rows.dtype.kind == "u":
        rows = rows.astype(np.int32)
    if turn.has(Quirk.ROUTING_OBJECT):
        first = 0 if turn.has(Quirk.ROUTING_WHOLE) else start
        data = base64.b64encode(rows.tobytes()).decode()
        return {"data": data, "shape": list(rows.shape), "dtype": str(rows.dtype), "start": first}
    file = io.BytesIO()
    if turn.has(Quirk.ROUTING_HUGE_HEADER):
        header = {"descr": "|u1", "fortran_order": False, "shape": (10**12, served.layers, served.top_k)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(rows.tobytes()[:64])
    elif turn.has(Quirk.ROUTING_PICKLE):
        np.save(file, rows.astype(object), allow_pickle=True)
    else:
        np.save(file, rows)
    return _text(turn, file.getvalue())


def nested_routing(turn: Turn, served: Served) -> tuple[Any, Any]:
    """vLLM 0.21: nested lists of the prompt's rows, and of the rows of what was sampled."""
    if (rows := routing_rows(turn, served, 0)) is None:
        return None, None
    border = len(turn.prompt_ids)
    return rows[:border].tolist(), rows[border:].tolist()


def raw_routing(turn: Turn, served: Served, start: int) -> str | None:
    """SGLang: base64 of little-endian int32, without a header."""
    if (rows := routing_rows(turn, served, start)) is None:
        return None
    dtype = "<f4" if turn.has(Quirk.ROUTING_FLOAT) else "<i4"
    return _text(turn, rows.astype(dtype).tobytes())


def _text(turn: Turn, data: bytes) -> str:
    if turn.has(Quirk.ROUTING_NOT_BASE64):
        return "*** not base64 ***"
    text = base64.b64encode(data).decode()
    return text[: len(text) // 2 - 1] if turn.has(Quirk.ROUTING_TRUNCATED) else text

"""A reference to a branch's kept arrays: what the orchestrator carries, and a trainer fetches by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from env_worker.arrays.branch import BranchLayout
    from env_worker.domain import JsonObject

MAX_REFERENCE_BYTES: Final = 1023
"""As JSON text, even where it is written with spaces and escapes."""
MAX_ADDRESS_BYTES: Final = 259
"""Of them: as long as a name of a host, 253, and a port can be."""


def make_reference(
    branch: BranchLayout, *, instance: str, address: str, key: str, trace_id: str = ""
) -> JsonObject:
    """The reference to `branch`, a JSON object of at most `MAX_REFERENCE_BYTES`.

    `branch` is the index of the leaf, `tokens` and `sampled` count tokens, `arrays` has the dtype, shape and
    bytes of each array of the complete fields, `incomplete` the reason of each other field. Where room is
    short, reasons are cut, and then the trace's id is left out: it only says what its place says already.

    Raises ValueError if even then there is no room, which an address of `check_address` never leads to.
    """
    reference: JsonObject = {
        "instance": instance,
        "address": address,
        "key": key,
        "branch": branch.leaf,
        "tokens": branch.tokens,
        "sampled": branch.sampled,
        "arrays": {
            array.name: {"dtype": array.dtype, "shape": list(array.shape), "bytes": array.size_bytes}
            for array in branch.arrays
        },
    }
    if branch.incomplete:
        reference["incomplete"] = dict.fromkeys(branch.incomplete, "")
    room = MAX_REFERENCE_BYTES - _size(reference)
    if room < 0:
        raise ValueError(
            f"a reference with the address {address[:32]!r}... of {len(address)} characters has "
            f"{-room} bytes over the limit of {MAX_REFERENCE_BYTES}; give the worker a shorter --advertise"
        )
    for field, reason in branch.incomplete.items():
        reference["incomplete"][field] = _cut(reason, room // len(branch.incomplete))
    if trace_id and _size(with_id := reference | {"trace_id": trace_id}) <= MAX_REFERENCE_BYTES:
        return with_id
    return reference


def check_address(address: str) -> None:
    """ValueError naming the address and the limit if references to a worker at `address` may have no room."""
    if (size := _size(address) - 2) > MAX_ADDRESS_BYTES:
        raise ValueError(
            f"the worker's address {address[:64]!r} takes {size} bytes, but references to training arrays, "
            f"of at most {MAX_REFERENCE_BYTES} bytes each, have room for {MAX_ADDRESS_BYTES}; give the "
            "worker a shorter --advertise"
        )


def _size(value: JsonObject | str) -> int:
    # With spaces and escapes, so that it holds whoever writes it once more.
    return len(json.dumps(value))


def _cut(text: str, room: int) -> str:
    """`text`, or what fits of it into `room` bytes of JSON beside the quotes."""
    if _size(text) - 2 <= room:
        return text
    kept = text[: max(0, room - 3)]
    while kept and _size(kept) - 2 > room - 3:
        kept = kept[:-1]
    return kept + "..."[:room]

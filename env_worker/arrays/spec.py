"""Which arrays there are: their names, and what one element of each belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import TRAINING_ARRAY_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from env_worker.domain import Node
    from env_worker.domain.routing import Routing


class Per(Enum):
    """What the first axis of an array counts."""

    TOKEN = auto()
    SAMPLED_TOKEN = auto()
    ID = auto()
    """An entry of a CSR pair: as many for each sampled token as its count says."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a field."""

    name: str
    """On the wire and in references, e.g. `sampling_mask.ids`."""
    field: str
    """The field of a node that it is taken from."""
    dtype: str
    """Little-endian numpy dtype; the narrower one where there are two."""
    per: Per

    def of(self, node: Node) -> npt.NDArray[Any] | Routing | None:
        """This array of `node`, None where the node has not got the field. Of `routed_experts` its routing,
        since repaired rows are not worth a copy of all the others."""
        _, _, attribute = self.name.partition(".")
        if not attribute:
            return node.routing
        array: npt.NDArray[Any] | None = getattr(getattr(node, self.field), attribute, None)
        return array


ROUTED_EXPERTS: Final = ArraySpec("routed_experts", "routed_experts", "u1", Per.TOKEN)
WIDE_EXPERTS: Final = "<u2"
"""The dtype of `routed_experts` where a model has more than 256 experts."""

FIELD_ARRAYS: Final[Mapping[str, tuple[ArraySpec, ...]]] = {
    "routed_experts": (ROUTED_EXPERTS,),
    "sampling_mask": (
        ArraySpec("sampling_mask.ids", "sampling_mask", "<i4", Per.ID),
        ArraySpec("sampling_mask.counts", "sampling_mask", "<i4", Per.SAMPLED_TOKEN),
    ),
    "top_logprobs": (
        ArraySpec("top_logprobs.ids", "top_logprobs", "<i4", Per.ID),
        ArraySpec("top_logprobs.logprobs", "top_logprobs", "<f4", Per.ID),
        ArraySpec("top_logprobs.counts", "top_logprobs", "<i4", Per.SAMPLED_TOKEN),
    ),
}
"""The arrays of each field in the order of a fetch: those of a CSR field end with its counts."""


def checked_fields(fields: Iterable[str]) -> tuple[str, ...]:
    """`fields` as a tuple; ValueError naming one that is unknown or was given twice."""
    found = tuple(fields)
    for position, field in enumerate(found):
        if field not in FIELD_ARRAYS:
            raise ValueError(
                f"{field!r} is no field of training arrays; the fields are {', '.join(TRAINING_ARRAY_FIELDS)}"
            )
        if field in found[:position]:
            raise ValueError(f"the field {field!r} was given twice; give it once")
    return found

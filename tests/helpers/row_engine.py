"""An engine's routing rows that tell of what they are, so that one in a wrong place is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import Message
from env_worker.model.dialects.base import Answer, RoutingRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from env_worker.domain import RoutedExperts

TOP_K: Final = 2


def row(ids: Sequence[int], position: int, *, layers: int = 2, wide: int = 0) -> npt.NDArray[np.uint16]:
    """`[layers, TOP_K]`: of the position, and of all tokens up to it; never 0. `wide` is added to each."""
    seen = sum((place + 1) * token for place, token in enumerate(ids[: position + 1]))
    return np.full((layers, TOP_K), (position % 200 + 1, seen % 200 + 1), np.uint16) + np.uint16(wide)


def rows_of(ids: Sequence[int], start: int, *, layers: int = 2, wide: int = 0) -> RoutingRows:
    """What an engine gives from position `start` on that has seen and sampled `ids`: all but the last row."""
    rows = [row(ids, position, layers=layers, wide=wide) for position in range(start, len(ids) - 1)]
    made: RoutedExperts = np.array(rows, np.uint16).reshape(-1, layers, TOP_K)
    return RoutingRows(start, made if wide else made.astype(np.uint8))


def answer(prompt: Sequence[int], sampled: Sequence[int], text: str = "answer", **fields: Any) -> Answer:
    """An answer with these tokens."""
    return Answer(
        Message.assistant(text),
        prompt_ids=np.array(prompt, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        **fields,
    )

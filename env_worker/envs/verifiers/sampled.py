"""What verifiers has of sampled tokens, checked as our own clients check what an engine gives.

verifiers checks some of it, each version and each of an engine's forms something else, and orders heads by
rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from env_worker.domain import TopLogprobs
from env_worker.model.fields.json_values import FieldError
from env_worker.model.fields.logprobs import CEILING, missing
from env_worker.model.fields.masks import check_ids, pieces
from env_worker.model.fields.versions import weight_versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from env_worker.domain import Float32Array, Int32Array, WeightVersionSpan

T = TypeVar("T", bound=np.generic)


def sampled_first(
    head: TopLogprobs, sampled: Int32Array, logprobs: Float32Array, width: int | None = None
) -> TopLogprobs:
    """`head` with each token's own id in front, the others in their order, without what is missing, and no
    more than `width` (None: all).

    verifiers leaves the token itself out where its rank is too low: then it is put there with its
    log-probability, which an engine gives it in the head too. Where that is unknown (`logprobs` may be empty)
    the count is 0, or the best of the others would be taken for it. Where there is a sampling mask, the
    others are all that it has, whatever was asked for.

    FieldError if a value is no log-probability, an id is none, or nothing is left.
    """
    counts = head.counts
    made = [
        _first(
            TopLogprobs(head.ids[piece.ids], head.logprobs[piece.ids], counts[piece.tokens]),
            sampled[piece.tokens],
            logprobs[piece.tokens],
            width,
        )
        for piece in pieces(counts)
    ]
    found = TopLogprobs(
        np.concatenate([one.ids for one in made]),
        np.concatenate([one.logprobs for one in made]),
        np.concatenate([one.counts for one in made]),
    )
    if len(sampled) and not len(found.ids):
        raise FieldError(
            f"top_logprobs has no candidate with a value for any of {len(sampled)} sampled tokens"
        )
    return found


def checked_versions(spans: Iterable[Any], tokens: int) -> tuple[WeightVersionSpan, ...]:
    """The weight versions of `tokens` sampled tokens. FieldError if they do not follow each other over all of
    them."""
    given = [{"version": span.version, "start": span.start, "end": span.end} for span in spans]
    return weight_versions({"weight_versions": given}, "weight_versions", tokens) if given else ()


def _first(head: TopLogprobs, sampled: Int32Array, logprobs: Float32Array, width: int | None) -> TopLogprobs:
    """`sampled_first` of one piece; it may be left with nothing."""
    ids, values, counts = head.ids, head.logprobs, head.counts
    check_ids("top_logprobs", ids)
    if (high := values > CEILING).any():
        raise FieldError(
            f"top_logprobs holds {values[high][0]:g}, which is no log-probability; vLLM gives them with "
            "--logprobs-mode raw_logprobs or processed_logprobs"
        )
    ends = np.cumsum(counts)
    starts = ends - counts
    is_own = ids == np.repeat(sampled, counts)
    own = np.full(len(sampled), np.nan, np.float32)
    if len(logprobs):
        own[counts > 0] = logprobs[counts > 0]
    at = np.flatnonzero(is_own)
    own[np.searchsorted(ends, at, "right")] = values[at]  # what the head says of it, even if that is nothing
    told = ~missing(own)
    others = ~(missing(values) | is_own) & np.repeat(told, counts)
    ranks = np.zeros(len(ids) + 1, np.int32)
    np.cumsum(others, out=ranks[1:])  # from 1 on, those of the tokens before counted too
    behind = ranks[ends] - ranks[starts]
    if width is not None and behind.max(initial=0) >= width:
        others &= ranks[1:] - np.repeat(ranks[starts], counts) < width
        np.minimum(behind, width - 1, out=behind)
    kept = behind + told
    first = np.zeros(int(kept.sum()), np.bool_)
    first[(np.cumsum(kept) - kept)[told]] = True
    return TopLogprobs(
        _placed(first, sampled[told], ids[others]), _placed(first, own[told], values[others]), kept
    )


def _placed(first: NDArray[np.bool_], own: NDArray[T], others: NDArray[T]) -> NDArray[T]:
    placed = np.empty(len(first), own.dtype)
    placed[first] = own
    placed[~first] = others
    return placed

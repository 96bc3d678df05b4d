"""What verifiers has of sampled tokens, checked as our own clients check what an engine gives.

verifiers checks some of it, each version and each of an engine's forms something else, and orders heads by
rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from env_worker.domain import SamplingMask, TopLogprobs
from env_worker.model.fields.json_values import FieldError, as_float32
from env_worker.model.fields.logprobs import CEILING, FLOOR
from env_worker.model.fields.versions import weight_versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from env_worker.domain import Float32Array, Int32Array, WeightVersionSpan


def checked_logprobs(values: NDArray[Any]) -> Float32Array:
    """float32 `[sampled]`. FieldError if one is missing or no log-probability."""
    wrong = np.flatnonzero(_missing(values) | (values > CEILING))
    if wrong.size:
        index = int(wrong[0])
        raise FieldError(
            f"{wrong.size} of {len(values)} log-probabilities are missing or none, the first that of sampled "
            f"token {index}: {values[index]:g}; expected above {FLOOR:g} and at most 0"
        )
    return as_float32(values)


def checked_mask(mask: SamplingMask, sampled: Int32Array) -> SamplingMask:
    """`mask`. A token may have none, but not all. FieldError if that of a token lacks its own id, or has what
    is no id."""
    _check_ids("sampling_mask", mask.ids)
    lacking = mask.counts > 0
    if len(sampled) and not lacking.any():
        raise FieldError(f"sampling_mask is empty for all {len(sampled)} sampled tokens")
    tokens = np.repeat(np.arange(len(sampled)), mask.counts)
    lacking[tokens[mask.ids == sampled[tokens]]] = False
    if lacking.any():
        index = int(lacking.argmax())
        raise FieldError(f"sampling_mask of sampled token {index} lacks its own id {sampled[index]}")
    return mask


def sampled_first(head: TopLogprobs, sampled: Int32Array, logprobs: Float32Array) -> TopLogprobs:
    """`head` with each token's own id in front, the others in their order, and without what is missing.

    verifiers leaves the token itself out where its rank is too low: then it is put there with its
    log-probability, which an engine gives it in the head too. Where that is unknown (`logprobs` may be empty)
    the count is 0, or the best of the others would be taken for it.

    FieldError if a value is no log-probability, an id is none, or nothing is left.
    """
    _check_ids("top_logprobs", head.ids)
    if (high := head.logprobs > CEILING).any():
        raise FieldError(
            f"top_logprobs holds {head.logprobs[high][0]:g}, which is no log-probability; vLLM gives them "
            "with --logprobs-mode raw_logprobs or processed_logprobs"
        )
    count = len(sampled)
    tokens = np.repeat(np.arange(count), head.counts)
    there = ~_missing(head.logprobs)
    own = head.ids == sampled[tokens]
    first, told = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    told[tokens[own]] = True
    first[tokens[own & there]] = True
    absent = np.flatnonzero((head.counts > 0) & ~told) if len(logprobs) else np.zeros(0, np.intp)
    first[absent] = True
    kept = there & first[tokens]
    if count and not kept.any():
        raise FieldError(f"top_logprobs has no candidate with a value for any of {count} sampled tokens")
    tokens = np.concatenate((absent, tokens[kept]))
    behind = np.concatenate((np.zeros(len(absent), np.bool_), ~own[kept]))
    order = np.lexsort((behind, tokens))
    return TopLogprobs(
        np.concatenate((sampled[absent], head.ids[kept]))[order],
        np.concatenate((logprobs[absent], head.logprobs[kept]))[order],
        np.bincount(tokens, minlength=count).astype(np.int32),
    )


def checked_versions(spans: Iterable[Any], tokens: int) -> tuple[WeightVersionSpan, ...]:
    """The weight versions of `tokens` sampled tokens. FieldError if they do not follow each other over all of
    them."""
    given = [{"version": span.version, "start": span.start, "end": span.end} for span in spans]
    return weight_versions({"weight_versions": given}, "weight_versions", tokens) if given else ()


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    missing: NDArray[np.bool_] = ~(np.isfinite(values) & (values > FLOOR))
    return missing


def _check_ids(field: str, ids: Int32Array) -> None:
    if (least := ids.min(initial=0)) < 0:
        raise FieldError(f"{field} holds the id {least}, expected 0 or more")

"""Log-probabilities of sampled tokens, and of the candidates beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from env_worker.domain import TopLogprobs
from env_worker.model.fields.json_values import (
    MAX_INT32,
    FieldError,
    as_float32,
    integers,
    numbers,
    only,
    shown,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from env_worker.domain import Float32Array, Int32Array
    from env_worker.model.fields.logprob_shapes import Candidates, Sampled

FLOOR: Final = -9999.0
"""What vLLM writes where it has no log-probability, or one that JSON cannot hold: no value of a token."""
CEILING: Final = 1e-3
"""Above zero by more than rounding: no log-probability."""

_PREFIX: Final = "token_id:"


def sampled_logprobs(given: Sampled, sampled: Int32Array) -> Float32Array:
    """float32 `[sampled]`. FieldError if one is missing, no log-probability, or of another token: a vector
    with a gap cannot be trained on."""
    if only(given.names, str) and not any(name.startswith(_PREFIX) for name in given.names):
        pass  # named by their text, which tells no id: then only their number and order can be believed
    elif (other := np.flatnonzero(_ids(given.names) != sampled)).size:
        index = int(other[0])
        raise FieldError(
            f"log-probability {index} is of token {shown(given.names[index])}, but sampled was "
            f"{sampled[index]}"
        )
    return checked_logprobs(numbers(given.values, "logprobs"))


def checked_logprobs(values: NDArray[Any]) -> Float32Array:
    """float32 `[sampled]`. FieldError if one is missing or no log-probability."""
    wrong = np.flatnonzero(missing(values) | (values > CEILING))
    if wrong.size:
        index = int(wrong[0])
        raise FieldError(
            f"{wrong.size} of {len(values)} log-probabilities are missing or none, the first that of sampled "
            f"token {index}: {values[index]:g}; expected above {FLOOR:g} and at most 0"
        )
    return as_float32(values)


def top_logprobs(given: Candidates, sampled: Int32Array, width: int) -> TopLogprobs:
    """Up to `width` candidates of each sampled token, itself the first, each id once. Missing values are left
    out, and with them ids that mean nothing. Where the sampled token's own is missing nothing is left: the
    count is 0, as where the engine gives no candidates, or the best of the others would be taken for it.

    FieldError if another token is the first of its candidates, a value is no log-probability, nothing is
    left, or no token came with as many as `width`, values or none: the engine was not asked for them.
    """
    ids, values = _ids(given.names), numbers(given.values, "top_logprobs")
    counts = np.array(given.counts, np.int64)
    starts = np.cumsum(counts) - counts
    some = np.flatnonzero(counts)
    other = some[ids[starts[some]] != sampled[some]]
    if other.size:
        index = int(other[0])
        raise FieldError(
            f"the first candidate of sampled token {index} is {ids[starts[index]]}, but sampled was "
            f"{sampled[index]}"
        )
    if (high := values > CEILING).any():
        raise FieldError(
            f"top_logprobs holds {values[high][0]}, which is no log-probability; vLLM gives them with "
            "--logprobs-mode raw_logprobs or processed_logprobs"
        )
    tokens = np.repeat(np.arange(len(counts)), counts)
    once = ~_repeated(tokens, ids)
    if 0 < (most := np.bincount(tokens[once]).max(initial=0)) < width:
        raise FieldError(
            f"top_logprobs has at most {most} candidates for any of {len(counts)} sampled tokens, expected "
            f"{width}; check how many the engine's server allows"
        )
    there = ~missing(values)
    headless = np.zeros(len(counts), np.bool_)
    headless[some] = ~there[starts[some]]
    kept = once & there & ~headless[tokens]
    tokens, ids, values = tokens[kept], ids[kept], values[kept]
    counts = np.bincount(tokens, minlength=len(counts))
    within = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = within < width
    if len(counts) and not kept.any():
        raise FieldError(
            f"top_logprobs has no candidate with a value for any of {len(counts)} sampled tokens"
        )
    return TopLogprobs(
        ids=ids[kept],
        logprobs=as_float32(values[kept]),
        counts=np.minimum(counts, width).astype(np.int32),
    )


def missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of these an engine has no value for."""
    absent: NDArray[np.bool_] = ~(np.isfinite(values) & (values > FLOOR))
    return absent


def _repeated(tokens: NDArray[np.intp], ids: Int32Array) -> NDArray[np.bool_]:
    """Which entries have an id that their token has had before."""
    keys = (tokens.astype(np.int64) << 32) | ids
    repeated = np.zeros(len(keys), np.bool_)
    ordered = np.sort(keys)
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        repeated[order[again + 1]] = True
    return repeated


def _ids(names: list[Any]) -> Int32Array:
    """Ids that are named by themselves or as `token_id:N`. FieldError if one is not."""
    if not names or not isinstance(names[0], str):
        return integers(names, "token ids of logprobs")
    try:
        text = "\n" + "\n".join(names)
        told = text.count("\n" + _PREFIX)
        whole = told == text.count("\n") == len(names)  # else one begins otherwise, or has several lines
        text = text.replace("\n" + _PREFIX, "\n")
        if whole and not text.encode().translate(None, b"\n0123456789"):
            ids = np.fromstring(text, np.int64, sep=" ")
            if len(ids) == told and not (ids.size and ids.max() > MAX_INT32):
                return ids.astype(np.int32)
    except (TypeError, UnicodeEncodeError):
        pass
    raise FieldError(
        f"logprobs names tokens as {shown(names[0])} and the like, expected {_PREFIX}N for each: their text "
        "alone tells no id"
    )

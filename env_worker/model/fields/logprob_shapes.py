"""Log-probabilities as the APIs arrange them, taken apart into flat lists; `logprobs` checks what they hold.

Tokens are named by id or as `token_id:N`. For the candidates of a token ("head") the engines' order is kept:
the sampled token first, then by rank.
"""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from env_worker.model.fields.json_values import AbsentError, FieldError, get_list, only

if TYPE_CHECKING:
    from collections.abc import Mapping


class Sampled(NamedTuple):
    """Of each sampled token: its name, and its log-probability or None."""

    names: list[Any]
    values: list[Any]


class Candidates(NamedTuple):
    """Of all sampled tokens, flat: names and log-probabilities; `counts` says how many are of each."""

    names: list[Any]
    values: list[Any]
    counts: list[int]


def chat_sampled(choice: Mapping[str, Any], tokens: int) -> Sampled:
    """Of `logprobs.content` of chat and of `/inference/v1/generate`."""
    return Sampled(*_names_and_values(_content(choice, tokens), "logprobs.content"))


def chat_candidates(choice: Mapping[str, Any], tokens: int) -> Candidates:
    """Of the `top_logprobs` in `logprobs.content`."""
    rows = [entry.get("top_logprobs") or () for entry in _content(choice, tokens)]
    if not only(rows, list, tuple):
        raise FieldError("top_logprobs is no list of candidates")
    entries = list(chain.from_iterable(rows))
    return Candidates(*_names_and_values(entries, "top_logprobs"), list(map(len, rows)))


def completion_sampled(choice: Mapping[str, Any], tokens: int) -> Sampled:
    """Of `logprobs` of `/v1/completions`."""
    logprobs = _logprobs(choice)
    return Sampled(get_list(logprobs, "tokens", tokens), get_list(logprobs, "token_logprobs", tokens))


def completion_candidates(choice: Mapping[str, Any], tokens: int) -> Candidates:
    """Of `logprobs.top_logprobs` of `/v1/completions`: objects from name to log-probability."""
    rows = [row or {} for row in get_list(_logprobs(choice), "top_logprobs", tokens)]
    if not only(rows, dict):
        raise FieldError("top_logprobs holds what is no object of candidates")
    return Candidates(
        list(chain.from_iterable(rows)),
        list(chain.from_iterable(row.values() for row in rows)),
        list(map(len, rows)),
    )


def meta_sampled(meta: Mapping[str, Any], tokens: int) -> Sampled:
    """Of `output_token_logprobs` of SGLang: `[log-probability, id, text or null]` each."""
    pairs = get_list(meta, "output_token_logprobs", tokens)
    _check_pairs(pairs, "output_token_logprobs")
    return Sampled([pair[1] for pair in pairs], [pair[0] for pair in pairs])


def meta_candidates(meta: Mapping[str, Any], tokens: int) -> Candidates:
    """Of `output_top_logprobs` of SGLang, which are the best by rank: the sampled token is put before them,
    also where it is among them."""
    sampled = get_list(meta, "output_token_logprobs", tokens)
    rows = [row or () for row in get_list(meta, "output_top_logprobs", tokens)]
    if not only(rows, list, tuple):
        raise FieldError("output_top_logprobs is no list of candidates")
    whole = [[first, *row] for first, row in zip(sampled, rows, strict=True)]
    pairs = list(chain.from_iterable(whole))
    _check_pairs(pairs, "output_top_logprobs")
    return Candidates([pair[1] for pair in pairs], [pair[0] for pair in pairs], list(map(len, whole)))


def _logprobs(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    logprobs = choice.get("logprobs")
    if logprobs is None:
        raise AbsentError("the response has no logprobs")
    if not isinstance(logprobs, dict):
        raise FieldError("logprobs is no object")
    return logprobs


def _content(choice: Mapping[str, Any], tokens: int) -> list[Any]:
    content = get_list(_logprobs(choice), "content", tokens)
    if not only(content, dict):
        raise FieldError("logprobs.content holds what is no object")
    return content


def _names_and_values(entries: list[Any], what: str) -> tuple[list[Any], list[Any]]:
    """Of objects that have them, as chat has `token`, and vLLM's generate `token_id` since 0.32."""
    try:
        key = "token_id" if entries and "token_id" in entries[0] else "token"
        return list(map(itemgetter(key), entries)), list(map(itemgetter("logprob"), entries))
    except (KeyError, TypeError, IndexError):
        pass
    if not only(entries, dict):
        raise FieldError(f"{what} holds what is no object")
    return [entry.get(key) for entry in entries], [entry.get("logprob") for entry in entries]


def _check_pairs(pairs: list[Any], what: str) -> None:
    if not only(pairs, list) or min(map(len, pairs), default=2) < 2:
        raise FieldError(f"{what} holds what is no pair of log-probability and id")

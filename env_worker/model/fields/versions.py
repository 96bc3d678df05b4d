"""Weight versions: which weights sampled which tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import WeightVersionSpan
from env_worker.domain.text import clean_text
from env_worker.model.fields.json_values import MAX_NAME, FieldError, get_list, only, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_SPANS: Final = 1 << 12
"""Of one answer: far more than weights are pushed while it is sampled."""


def weight_versions(parent: Mapping[str, Any], key: str, tokens: int) -> tuple[WeightVersionSpan, ...]:
    """The spans at `key`: they follow each other from 0 to `tokens`. FieldError if they do not."""
    values = get_list(parent, key)
    if len(values) > MAX_SPANS:
        raise FieldError(f"{key} has {len(values)} spans, the limit is {MAX_SPANS}")
    if not only(values, dict):
        raise FieldError(f"{key} holds what is no span")
    spans: list[WeightVersionSpan] = []
    end = 0
    for value in values:
        version, first, last = value.get("version"), value.get("start"), value.get("end")
        if not isinstance(version, str):
            raise FieldError(f"{key} has the version {shown(version)}, expected a text")
        if type(first) is not int or type(last) is not int or first != end or not first < last <= tokens:
            raise FieldError(
                f"{key} has a span from {shown(first)} to {shown(last)} behind {end}, expected spans that "
                f"follow each other from 0 to {tokens}"
            )
        spans.append(WeightVersionSpan(clean_text(version[:MAX_NAME]), first, last))
        end = last
    if end != tokens:
        raise FieldError(f"{key} covers {end} sampled tokens, expected {tokens}")
    return tuple(spans)

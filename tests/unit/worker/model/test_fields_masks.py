"""Sampling masks and weight versions: what fits the sampled tokens is taken, all else is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from env_worker.domain import WeightVersionSpan
from env_worker.model.fields.json_values import AbsentError, FieldError
from env_worker.model.fields.masks import sampling_mask
from env_worker.model.fields.versions import weight_versions

SAMPLED = np.array([5, 6, 7], np.int32)


def test_masks_become_ids_and_counts() -> None:
    mask = sampling_mask({"mask": [[1, 5], [], None]}, "mask", SAMPLED)
    assert mask.ids.tolist() == [1, 5]
    assert mask.counts.tolist() == [2, 0, 0]
    assert mask.ids.dtype == mask.counts.dtype == np.int32


def test_an_absent_mask_is_absent() -> None:
    with pytest.raises(AbsentError):
        sampling_mask({"mask": None}, "mask", SAMPLED)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([[5], [6]], "has 2 entries, expected 3"),
        ([[5], [9, 8], [7]], "of sampled token 1 lacks its own id 6"),
        ([[], [], []], "empty for all 3"),
        ([[5], [6], ["7"]], "holds '7'"),
        ([[5], [6], [True]], "holds True"),
        ([[5], [6], [-1]], "holds -1"),
        ([[5], [6], [2**31]], "holds 2147483648"),
        ([[5], [6], [10**30]], "beyond 64 bits"),
        ([[5], [6], [7.0]], "holds 7.0"),
        ([[5], [6], 7], "no list of ids"),
        ("5", "is '5', expected a list"),
    ],
)
def test_masks_that_do_not_fit_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(FieldError, match=reason):
        sampling_mask({"mask": value}, "mask", SAMPLED)


def span(version: Any, start: Any, end: Any) -> dict[str, Any]:
    return {"version": version, "start": start, "end": end}


def test_spans_cover_the_sampled_tokens() -> None:
    assert weight_versions({"w": [span("a\ud800", 0, 1), span("", 1, 3)]}, "w", 3) == (
        WeightVersionSpan("a?", 0, 1),
        WeightVersionSpan("", 1, 3),
    )
    assert weight_versions({"w": []}, "w", 0) == ()


@pytest.mark.parametrize(
    "value",
    [
        [],
        [span("a", 0, 2)],
        [span("a", 1, 3)],
        [span("a", 0, 4)],
        [span("a", 0, 1), span("b", 2, 3)],
        [span("a", 0, 2), span("b", 1, 3)],
        [span("a", 0, 0), span("b", 0, 3)],
        [span("a", -1, 3)],
        [span(7, 0, 3)],
        [span("a", 0, 3.0)],
        [span("a", False, 3)],
        [span("a", None, None)],
        ["a"],
        {"a": 1},
    ],
)
def test_spans_that_do_not_cover_them_are_refused(value: Any) -> None:
    with pytest.raises(FieldError):
        weight_versions({"w": value}, "w", 3)

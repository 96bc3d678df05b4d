"""Sampling masks and weight versions: what fits the sampled tokens is taken, all else is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from env_worker.domain import WeightVersionSpan
from env_worker.model.fields import json_values, masks
from env_worker.model.fields.json_values import AbsentError, FieldError, integers, numbers
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


def test_large_masks_are_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    sampled = np.array([chance.randrange(9) for _ in range(200)], np.int32)
    rows: list[Any] = [
        chance.choice([[*range(chance.randrange(9)), int(own)], None, [], [int(own)]]) for own in sampled
    ]
    for piece in (1, 2, 7, 50, 10_000):
        monkeypatch.setattr(masks, "_PIECE", piece)
        mask = sampling_mask({"mask": rows}, "mask", sampled)
        assert mask.ids.tolist() == [id_ for row in rows for id_ in row or ()]
        assert mask.counts.tolist() == [len(row or ()) for row in rows]
        assert mask.ids.dtype == mask.counts.dtype == np.int32
        with pytest.raises(FieldError, match=f"token 150 lacks its own id {sampled[150]}"):
            sampling_mask({"mask": [*rows[:150], [99], *rows[151:]]}, "mask", sampled)


def test_many_values_are_made_arrays_of_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "_PIECE", 3)
    for count in range(12):
        assert integers(list(range(count)), "ids").tolist() == list(range(count))
        assert np.array_equal(numbers([0.5, None] * count, "x"), [0.5, np.nan] * count, equal_nan=True)
    assert integers([1] * 7, "ids").dtype == np.int32
    with pytest.raises(FieldError, match="ids holds -1, expected 0 to"):
        integers([1] * 7 + [-1], "ids")
    with pytest.raises(FieldError, match="x holds 'a', expected numbers"):
        numbers([1.0] * 7 + ["a"], "x")


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

"""The example's trainer sees what is wrong with fetched arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.smollm.trainer import Branch, faults_of

SAMPLED = np.array([5, 9], np.int32)
LOGPROBS = np.log(np.array([0.6, 0.3], np.float32))
FETCHED: dict[str, Any] = {
    "sampling_mask.ids": np.array([5, 7, 9, 5, 4], np.int32),
    "sampling_mask.counts": np.array([2, 3], np.int32),
    "top_logprobs.ids": np.array([5, 7, 9, 5], np.int32),
    "top_logprobs.logprobs": np.log(np.array([0.6, 0.4, 0.3, 0.5], np.float32)),
    "top_logprobs.counts": np.array([2, 2], np.int32),
}


def test_arrays_that_fit_have_no_faults() -> None:
    assert faults_of(Branch({}, SAMPLED, LOGPROBS), FETCHED) == []


@pytest.mark.parametrize(
    ("name", "place", "value", "fault"),
    [
        ("sampling_mask.ids", 2, 6, "token 1 of 2: not so that the mask has the sampled token"),
        ("top_logprobs.ids", 0, 7, "token 0 of 2: not so that the head begins with the sampled token"),
        ("top_logprobs.ids", 3, 8, "token 1 of 2: not so that the head is of what the mask has kept"),
        (
            "top_logprobs.logprobs",
            0,
            -0.6,
            "token 0 of 2: not so that the head's first is the token's log-probability",
        ),
        (
            "top_logprobs.logprobs",
            1,
            -0.1,
            "token 0 of 2: not so that the head's probabilities are at most 1",
        ),
    ],
)
def test_one_wrong_value_is_seen(name: str, place: int, value: float, fault: str) -> None:
    changed = FETCHED[name].copy()
    changed[place] = value
    assert fault in faults_of(Branch({}, SAMPLED, LOGPROBS), FETCHED | {name: changed})


def test_counts_that_do_not_fit_are_seen() -> None:
    short = FETCHED | {"sampling_mask.counts": np.array([2], np.int32)}
    assert faults_of(Branch({}, SAMPLED, LOGPROBS), short) == ["1 masks and 2 heads for 2 sampled tokens"]
    assert faults_of(Branch({}, SAMPLED, None), FETCHED) == ["its sampled tokens have no log-probabilities"]

"""Log-probabilities: a missing one is not a number, and a token's candidates hold each id once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.model.fields.json_values import FieldError
from env_worker.model.fields.logprob_shapes import (
    Candidates,
    Sampled,
    chat_candidates,
    chat_sampled,
    completion_candidates,
    meta_candidates,
    meta_sampled,
)
from env_worker.model.fields.logprobs import checked_logprobs, sampled_logprobs, top_logprobs


def ids(*values: int) -> np.typing.NDArray[np.int32]:
    return np.array(values, np.int32)


def named(*tokens: int) -> list[str]:
    return [f"token_id:{token}" for token in tokens]


@pytest.mark.parametrize("names", [[5, 6], named(5, 6), ["a", "b"]])
def test_logprobs_are_those_of_the_sampled_tokens(names: list[Any]) -> None:
    values = sampled_logprobs(Sampled(names, [-0.5, 0]), ids(5, 6))
    assert values.dtype == np.float32
    assert values.tolist() == [-0.5, 0.0]


@pytest.mark.parametrize("value", [-9999.0, -9999, -1e9, None, math.nan, -math.inf, 0.5, 3, math.inf])
def test_one_missing_logprob_takes_the_vector_with_its_place_and_value(value: Any) -> None:
    with pytest.raises(FieldError, match=r"1 of 3 log-probabilities .* sampled token 1: "):
        sampled_logprobs(Sampled(named(5, 6, 7), [-0.5, value, -0.5]), ids(5, 6, 7))


def test_rounding_above_zero_is_a_logprob() -> None:
    assert sampled_logprobs(Sampled([5], [1e-4]), ids(5))[0] == np.float32(1e-4)


@pytest.mark.parametrize("value", ["-0.5", [], {}, True, 10**400])
def test_values_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(FieldError):
        sampled_logprobs(Sampled([5], [value]), ids(5))


def test_a_value_is_shown_as_it_was_given_whatever_its_width() -> None:
    with pytest.raises(FieldError, match=r"token 1: 0\.7; expected above -9999 and at most 0"):
        checked_logprobs(np.array([-0.5, np.float32(0.7)], np.float64))


@pytest.mark.parametrize("names", [[5, 9], named(5, 9)])
def test_a_logprob_of_another_token_is_refused(names: list[Any]) -> None:
    with pytest.raises(FieldError, match=r"log-probability 1 is of token .*9.*, but sampled was 6"):
        sampled_logprobs(Sampled(names, [-0.5, -0.5]), ids(5, 6))


@pytest.mark.parametrize(
    "names",
    [
        ["token_id:5", "x"],
        ["x", "token_id:5"],
        ["token_id:5", "token_id:"],
        ["token_id:", "token_id:5"],
        ["token_id:5", "token_id:-6"],
        ["token_id:5", "token_id:4294967296"],
        ["token_id:5", "token_id:" + "9" * 5000],
        ["token_id:5", "token_id:\ud800"],
        ["token_id:5", "token_id:٥"],
        ["token_id:", "5token_id:6"],
        ["token_id:5token_id:6", ""],
        ["token_id:5\ntoken_id:6", ""],
        ["token_id:5 6", "token_id:"],
        ["token_id:5", 6],
        ["token_id:5", None],
        [5, True],
        [5, 2**40],
        [[], {}],
    ],
)
def test_names_that_are_no_ids_are_refused(names: list[Any]) -> None:
    with pytest.raises(FieldError):
        top_logprobs(Candidates(names, [-1.0, -2.0], [2]), ids(5), 2)
    with pytest.raises(FieldError):
        sampled_logprobs(Sampled(names, [-1.0, -2.0]), ids(5, 6))


def test_candidates_named_by_text_are_refused_since_texts_collide() -> None:
    with pytest.raises(FieldError, match="text alone tells no id"):
        top_logprobs(Candidates(["a", "b"], [-1.0, -2.0], [2]), ids(5), 2)


def test_a_head_has_the_sampled_token_first_each_id_once_and_at_most_the_width() -> None:
    given = Candidates(named(5, 7, 5, 8, 9, 6, 1), [-2.0, -0.1, -2.0, -9999.0, -3.0, -0.5, math.nan], [5, 2])
    head = top_logprobs(given, ids(5, 6), 2)
    assert head.ids.tolist() == [5, 7, 6]
    assert head.logprobs.tolist() == [np.float32(value) for value in (-2.0, -0.1, -0.5)]
    assert head.counts.tolist() == [2, 1]
    assert top_logprobs(given, ids(5, 6), 4).ids.tolist() == [5, 7, 9, 6]


def test_a_sampled_token_without_candidates_has_a_count_of_zero() -> None:
    assert top_logprobs(Candidates([6], [-1.0], [0, 1]), ids(5, 6), 1).counts.tolist() == [0, 1]
    with pytest.raises(FieldError, match="no candidate with a value for any of 2"):
        top_logprobs(Candidates([], [], [0, 0]), ids(5, 6), 3)


def test_a_head_whose_sampled_token_has_no_value_is_none() -> None:
    values = [-9999.0, -0.5, -1.5, -0.1, -2.0, -3.0]
    head = top_logprobs(Candidates(named(7, 8, 9, 5, 6, 4), values, [3, 3]), ids(7, 5), 3)
    assert (head.ids.tolist(), head.counts.tolist()) == ([5, 6, 4], [0, 3])
    again = Candidates(
        [7, 8, 7, 5], [None, -0.5, -0.7, -0.1], [3, 1]
    )  # its first entry is the one that counts
    assert top_logprobs(again, ids(7, 5), 2).counts.tolist() == [0, 1]
    with pytest.raises(FieldError, match="no candidate with a value for any of 1"):
        top_logprobs(Candidates([7, 8], [math.nan, -0.5], [2]), ids(7), 2)


@pytest.mark.parametrize(
    ("names", "values", "counts"),
    [
        ([5, 7, 6], [-1.0, -2.0, -1.0], [2, 1]),
        ([5, 7, 5, 6], [-1.0, -2.0, -1.0, -1.0], [3, 1]),  # one came twice
        ([5, 7, 6, 8], [-1.0, -2.0, -1.0, -9999.0], [2, 2]),  # one has no value
        ([5, 7, 6, 8], [-1.0, -2.0, None, -1.0], [2, 2]),
    ],
)
def test_heads_narrower_than_asked_for_are_refused(
    names: list[int], values: list[float | None], counts: list[int]
) -> None:
    narrow = Candidates(names, values, counts)
    with pytest.raises(FieldError, match="at most 2 candidates for any of 2 sampled tokens, expected 3"):
        top_logprobs(narrow, ids(5, 6), 3)
    assert top_logprobs(narrow, ids(5, 6), 2).counts[0] == 2


def test_candidates_outside_of_the_nucleus_were_given_though_they_have_no_value() -> None:
    outside = Candidates([5, 7, 9, 6, 8], [-1.0, -2.0, -9999.0, -1.0, -9999.0], [3, 2])
    assert top_logprobs(outside, ids(5, 6), 3).counts.tolist() == [2, 1]


def test_candidates_of_another_token_are_refused() -> None:
    with pytest.raises(FieldError, match="first candidate of sampled token 1 is 7, but sampled was 6"):
        top_logprobs(Candidates([5, 7, 6], [-1.0, -1.0, -1.0], [1, 2]), ids(5, 6), 3)


def test_logits_are_no_logprobs() -> None:
    with pytest.raises(FieldError, match=r"holds 4\.5, .*--logprobs-mode"):
        top_logprobs(Candidates([5, 7], [-1.0, 4.5], [2]), ids(5), 3)


@settings(max_examples=80)
@given(
    heads=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from([-9999.0, -3.0, -1.0, None])), max_size=8),
        min_size=1,
        max_size=6,
    ),
    width=st.integers(1, 5),
    by_text=st.booleans(),
)
def test_heads_are_what_a_plain_loop_makes(
    heads: list[list[tuple[int, float | None]]], width: int, by_text: bool
) -> None:
    sampled = [head[0][0] if head else 3 for head in heads]
    expected = []
    offered = 0
    for head in heads:
        kept: dict[int, float] = {}
        seen = set()
        for token, value in head:
            if token not in seen and value is not None and value > -9999:
                kept[token] = value
            seen.add(token)
        offered = max(offered, len(seen))
        expected.append(list(kept.items()) if head and head[0][0] in kept else [])
    flat = [pair for head in heads for pair in head]
    names = named(*(token for token, _ in flat)) if by_text else [token for token, _ in flat]
    candidates = Candidates(names, [value for _, value in flat], list(map(len, heads)))
    if not any(expected) or offered < width:
        with pytest.raises(FieldError):
            top_logprobs(candidates, ids(*sampled), width)
        return
    expected = [row[:width] for row in expected]
    # Of an id that is repeated only the first entry counts, also where that has no value.
    found = top_logprobs(candidates, ids(*sampled), width)
    assert found.counts.tolist() == list(map(len, expected))
    assert found.ids.tolist() == [token for row in expected for token, _ in row]
    assert found.logprobs.tolist() == [value for row in expected for _, value in row]


def test_the_shapes_of_the_apis() -> None:
    content = [
        {"token": "token_id:5", "logprob": -1.0, "top_logprobs": [{"token": "token_id:5", "logprob": -1.0}]},
        {"token": "token_id:6", "top_logprobs": None},
    ]
    chat = {"logprobs": {"content": content}}
    assert chat_sampled(chat, 2) == (["token_id:5", "token_id:6"], [-1.0, None])
    assert chat_candidates(chat, 2) == (["token_id:5"], [-1.0], [1, 0])
    generate = {"logprobs": {"content": [{"token_id": 5, "logprob": -1.0, "top_logprobs": []}]}}
    assert chat_sampled(generate, 1) == ([5], [-1.0])
    completion = {"logprobs": {"top_logprobs": [{"token_id:5": -1.0, "token_id:7": -2.0}, None]}}
    assert completion_candidates(completion, 2) == (["token_id:5", "token_id:7"], [-1.0, -2.0], [2, 0])
    meta = {
        "output_token_logprobs": [[-3.0, 5, "x"], [-1.0, 6, None]],
        "output_top_logprobs": [[[-0.1, 7, "y"]], None],
    }
    assert meta_sampled(meta, 2) == ([5, 6], [-3.0, -1.0])
    assert meta_candidates(meta, 2) == ([5, 7, 6], [-3.0, -0.1, -1.0], [2, 1])


@pytest.mark.parametrize("content", [None, 1, [], [1, 2], [{}, []], ["token", "token"], [None, {}]])
def test_content_that_is_none_is_refused(content: Any) -> None:
    choice = {"logprobs": {"content": content}}
    with pytest.raises(FieldError):
        chat_candidates(choice, 2)
    with pytest.raises(FieldError):
        sampled_logprobs(chat_sampled(choice, 2), ids(5, 6))

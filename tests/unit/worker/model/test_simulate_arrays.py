"""The generators give arrays of the promised shape, dtype and range, and the same ones for the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_worker.model import simulate_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY = 1000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sampled(tokens: int) -> NDArray[np.int32]:
    return simulate_arrays.random_token_ids(rng(5), tokens, VOCABULARY)


@settings(max_examples=40)
@given(
    tokens=st.integers(0, 30),
    layers=st.integers(1, 5),
    experts=st.sampled_from([2, 8, 256, 257, 4096]),
    top_k=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_routing_holds_distinct_experts_and_no_row_is_all_zero(
    tokens: int, layers: int, experts: int, top_k: int, seed: int
) -> None:
    top_k = min(top_k, experts)
    routing = simulate_arrays.routed_experts(rng(seed), tokens, layers=layers, top_k=top_k, experts=experts)
    assert routing.shape == (tokens, layers, top_k)
    assert routing.dtype == (np.uint8 if experts <= 256 else np.uint16)
    assert not tokens or int(routing.max()) < experts
    ordered = np.sort(routing, axis=2)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
    assert routing.any(axis=2).all()


def test_routing_uses_every_expert() -> None:
    routing = simulate_arrays.routed_experts(rng(), 500, layers=4, top_k=8, experts=128)
    assert np.unique(routing).tolist() == list(range(128))


@pytest.mark.parametrize(
    ("top_k", "experts", "named"), [(0, 8, "top_k is 0"), (9, 8, "top_k is 9"), (1, 1, "experts is 1")]
)
def test_impossible_routing_is_refused(top_k: int, experts: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        simulate_arrays.routed_experts(rng(), 1, layers=1, top_k=top_k, experts=experts)


@settings(max_examples=40)
@given(tokens=st.integers(0, 40), width=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_a_sampling_mask_contains_the_sampled_id_and_no_id_twice(tokens: int, width: int, seed: int) -> None:
    ids = sampled(tokens)
    mask = simulate_arrays.sampling_mask(rng(seed), ids, width=width, vocabulary=VOCABULARY)
    assert mask.ids.dtype == mask.counts.dtype == np.int32
    assert len(mask.counts) == tokens
    for index, row in enumerate(np.split(mask.ids, np.cumsum(mask.counts)[:-1]) if tokens else []):
        assert 1 <= len(row) <= width
        assert ids[index] in row
        assert len(set(row.tolist())) == len(row)
        assert 0 <= row.min() <= row.max() < VOCABULARY


@settings(max_examples=40)
@given(tokens=st.integers(0, 40), width=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_a_head_holds_the_sampled_token_and_is_a_distribution(tokens: int, width: int, seed: int) -> None:
    ids = sampled(tokens)
    logprobs = simulate_arrays.logprobs(rng(seed), tokens)
    head = simulate_arrays.top_logprobs(rng(seed), ids, logprobs, width=width, vocabulary=VOCABULARY)
    assert head.ids.dtype == head.counts.dtype == np.int32
    assert head.logprobs.dtype == np.float32
    assert head.counts.tolist() == [width] * tokens
    rows, values = head.ids.reshape(tokens, width), head.logprobs.reshape(tokens, width)
    assert (rows[:, 0] == ids).all()
    assert (values[:, 0] == logprobs).all()
    assert np.isfinite(values).all()
    assert (np.exp(values.astype(np.float64)).sum(axis=1) <= 1.0 + 1e-6).all()
    assert all(len(set(row.tolist())) == width for row in rows)


def test_logprobs_are_below_zero() -> None:
    logprobs = simulate_arrays.logprobs(rng(), 1000)
    assert logprobs.dtype == np.float32
    assert (logprobs < 0).all()


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_token_ids_follow_from_the_text_alone(text: str) -> None:
    ids = simulate_arrays.token_ids(text, VOCABULARY)
    assert ids.dtype == np.int32
    assert len(ids) == -(-len(text.encode()) // 4)
    assert ((ids >= simulate_arrays.FIRST_TEXT_ID) & (ids < VOCABULARY)).all()
    assert (ids == simulate_arrays.token_ids(text, VOCABULARY)).all()


def test_pieces_of_text_that_differ_get_other_ids() -> None:
    ids = simulate_arrays.token_ids("one two three four five six seven", 32_768)
    assert len(set(ids.tolist())) == len(ids)

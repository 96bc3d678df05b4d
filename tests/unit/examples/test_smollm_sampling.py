"""The example's sampler: what is drawn, and what is told of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from examples.smollm.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOGITS = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-30, 30, width=32), unique=True)


def expected(logits: NDArray[np.float32], sampling: Sampling) -> tuple[dict[int, float], float]:
    """Probabilities by id, token by token; and how near to `top_p` one of their sums comes."""
    scaled = {index: float(logit) / sampling.temperature for index, logit in enumerate(logits)}
    best = sorted(scaled, key=lambda index: -scaled[index])
    if sampling.top_k:
        best = best[: sampling.top_k]

    def softmax(ids: list[int]) -> dict[int, float]:
        weights = {index: float(np.exp(scaled[index] - scaled[best[0]])) for index in ids}
        return {index: weight / sum(weights.values()) for index, weight in weights.items()}

    kept: list[int] = []
    before, nearest = 0.0, 1.0
    for index, probability in softmax(best).items():
        nearest = min(nearest, abs(before - sampling.top_p)) if sampling.top_p < 1 else nearest
        if before < sampling.top_p or sampling.top_p == 1 or not kept:
            kept.append(index)
        before += probability
    return softmax(kept), nearest


@given(
    logits=LOGITS,
    temperature=st.floats(0.2, 3),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1),
    heads=st.integers(0, 8),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_a_draw_tells_what_it_was_drawn_from(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, heads: int, seed: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p, seed, heads)
    probabilities, nearest = expected(logits, sampling)
    assume(nearest > 1e-9)  # sums are rounded: what is right on the border may be on either side
    draw = Sampler(sampling).draw(logits)
    assert draw == Sampler(sampling).draw(logits)
    assert draw.kept == (list(probabilities) if top_k else None)
    assert draw.head[0].token == draw.token
    others = [candidate.token for candidate in draw.head[1:]]
    if top_k:
        assert others == [token for token in list(probabilities)[:heads] if token != draw.token]
    for token, logprob, rank in draw.head if top_k else ():
        assert np.exp(logprob) == pytest.approx(probabilities[token], rel=1e-4, abs=1e-7)
        assert list(probabilities)[rank - 1] == token


def test_draws_are_as_frequent_as_their_probabilities_say() -> None:
    logits = np.array([3, 1, 2, 2.5, -1], np.float32)
    sampling = Sampling(temperature=1.5, top_k=4, top_p=0.9, seed=3)
    sampler = Sampler(sampling)
    counts = Counter(sampler.draw(logits).token for _ in range(4000))
    probabilities, _ = expected(logits, sampling)
    assert set(counts) == set(probabilities)
    for token, probability in probabilities.items():
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


def test_without_temperature_the_best_is_all_there_is() -> None:
    draw = Sampler(Sampling(temperature=0, top_k=40, heads=3)).draw(np.array([0, 5, 4], np.float32))
    assert draw == (1, ((1, 0.0, 1),), [1])


def test_without_top_k_too_many_survive_to_tell_them() -> None:
    draw = Sampler(Sampling(top_p=0.5, heads=None)).draw(np.zeros(8, np.float32))
    assert draw.kept is None
    assert len(draw.head) == 1

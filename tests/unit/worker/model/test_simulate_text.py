"""Wrong answers look like the right one and are never it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model.simulate_text import words, wrong_answer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXT | st.from_regex(r"-?[0-9]{1,12}(\.[0-9]+)?", fullmatch=True), st.integers(0, 2**32))
def test_a_wrong_answer_is_never_the_reference(reference: str, seed: int) -> None:
    answer = wrong_answer(np.random.default_rng(seed), reference)
    assert answer not in {reference, reference.strip()}


@given(st.integers(-(10**12), 10**12), st.integers(0, 2**32))
def test_a_wrong_number_is_another_number(reference: int, seed: int) -> None:
    assert int(wrong_answer(np.random.default_rng(seed), str(reference))) != reference


@pytest.mark.parametrize(
    ("reference", "wrong"), [("Yes", "No"), ("true", "false"), ("FALSE", "TRUE"), ("left", "right")]
)
def test_a_flag_is_flipped(reference: str, wrong: str) -> None:
    assert wrong_answer(np.random.default_rng(0), reference) == wrong


def test_words_keep_their_layout_when_two_are_swapped() -> None:
    answer = wrong_answer(np.random.default_rng(0), "A B\nC D")
    assert sorted(answer) == sorted("A B\nC D")
    assert [answer[1], answer[3], answer[5]] == [" ", "\n", " "]


def test_words_are_seeded() -> None:
    assert words(np.random.default_rng(3), 5) == words(np.random.default_rng(3), 5)
    assert len(words(np.random.default_rng(3), 5).split(" ")) == 5

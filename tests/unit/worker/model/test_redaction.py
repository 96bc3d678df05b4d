"""What an engine repeats of its key reaches nobody, however it is spelt or cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model.engine import Engine, key_in
from env_worker.model.redaction import redacted

KEY = 'sk-very\\secret"4711'


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"bad key {KEY}!", "bad key ***!"),
        (f"{KEY}{KEY} {KEY}", "****** ***"),
        (json.dumps({"key": KEY}), '{"key": "***"}'),
        (repr(KEY.encode()), "b'***'"),
        (f"cut {KEY[:-3]}", "cut ***"),
        (f"cut {KEY[:8]} and {KEY[:10]}...", "cut *** and ***..."),
        ("sk-very", "sk-very"),
        ("nothing of it", "nothing of it"),
        ("", ""),
    ],
)
def test_a_secret_is_not_repeated(said: str, told: str) -> None:
    assert redacted(said, [KEY]) == told


def test_what_is_short_is_no_secret() -> None:
    assert redacted("EMPTY is none", ["EMPTY", ""]) == "EMPTY is none"


def test_a_secret_that_another_begins_with_leaves_nothing_of_it() -> None:
    assert redacted("x 12345678-long y", ["12345678", "12345678-long"]) == "x *** y"


def test_words_that_were_put_on_one_line_are_known_again() -> None:
    assert redacted("a  b: very secret words", ["very   secret\twords"]) == "a  b: ***"


@given(st.text(min_size=8, max_size=20), st.text(max_size=20), st.text(max_size=20), st.integers(0, 50))
def test_nothing_of_eight_characters_of_it_is_left(key: str, before: str, after: str, cut: int) -> None:
    if key[:8] in before + "***" + after or "*" in key:
        return
    assert key[:8] not in redacted(f"{before}{key}{after}"[: len(before) + cut], [key])


# Keys.


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {} ", "\t{}"])
def test_white_space_around_a_key_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    monkeypatch.setenv("ENGINE_KEY", around.format("sk-0123456789"))
    assert Engine("http://e", "m", key_variable="ENGINE_KEY").api_key == "sk-0123456789"


@pytest.mark.parametrize(
    "key", ["sk-0123\n456789", "sk-0123456789\x7fx", "sk-0123456789\u2019", "sk-01\t23456789"]
)
def test_what_no_header_can_carry_is_no_key(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("ENGINE_KEY", key)
    with pytest.raises(LookupError, match="ENGINE_KEY of this worker holds characters") as refused:
        key_in("ENGINE_KEY")
    assert "0123" not in str(refused.value)


def test_white_space_alone_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", " \n")
    with pytest.raises(LookupError, match="ENGINE_KEY of this worker is not set to anything"):
        key_in("ENGINE_KEY")


def test_an_engine_hides_its_key_and_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-0123456789\n")
    engine = Engine("http://e", "m", headers={"x-tenant": "tenant-seven"}, key_variable="ENGINE_KEY")
    assert engine.redacted("sk-0123456789 of tenant-seven at http://e") == "*** of *** at http://e"
    monkeypatch.delenv("ENGINE_KEY")
    assert engine.redacted("of tenant-seven") == "of ***"

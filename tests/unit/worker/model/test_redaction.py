"""What an engine repeats of its key reaches nobody, however it is spelt or cut."""

from __future__ import annotations

import base64
import html
import json
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model.engine import Engine, key_in
from env_worker.model.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable

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


ODD = "s3cr3t/+key==42&x"
QUOTED = "a\\b\"c'defgh"


@pytest.mark.parametrize("key", [ODD, QUOTED, "sk-very-secret-4711", 'it\'s < a "key" of/mine'])
@pytest.mark.parametrize(
    "spell",
    [
        json.dumps,
        lambda key: json.dumps(json.dumps(key)),
        lambda key: json.dumps(key).replace("/", "\\/"),
        lambda key: json.dumps(key).replace("&", "\\u0026").replace("<", "\\u003c"),
        repr,
        lambda key: repr(repr(key)),
        lambda key: repr(json.dumps(key)),
        lambda key: json.dumps(repr(key)),
        quote,
        lambda key: quote(key, safe=""),
        lambda key: quote(key, safe="").lower(),
        quote_plus,
        lambda key: quote(quote(key, safe=""), safe=""),
        html.escape,
        str.upper,
        str.lower,
    ],
)
def test_a_secret_is_not_repeated_however_it_is_escaped(key: str, spell: Callable[[str], str]) -> None:
    told = redacted(f"before {spell(key)} after", [key])
    assert told.replace("\\", "").replace('"', "").replace("'", "") == "before *** after"


@pytest.mark.parametrize("before", ["", "u", "me", "Bearer ", "user:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("key", [ODD, KEY, "\xff" * 20])
def test_base64_of_a_secret_is_not_repeated(key: str, encode: Callable[[bytes], bytes], before: str) -> None:
    encoded = encode((before + key).encode()).decode()
    told = redacted(f"got {encoded}", [key])
    first = len(before) * 8 // 6
    assert told.startswith(f"got {encoded[:first]}")
    assert len(told.replace("***", "")) <= len("got ") + first + len("x") + len("y==")  # shared with others


def test_what_is_short_is_no_secret() -> None:
    assert redacted("EMPTY is none", ["EMPTY", ""]) == "EMPTY is none"
    seven = "a/b/c/d"  # also where it is longer as it is spelt
    assert redacted(quote(seven, safe=""), [seven], [seven]) == quote(seven, safe="")


def test_of_what_is_no_key_only_the_whole_counts() -> None:
    whole = ["application/json", "Qwen/Qwen3-30B-A3B", "tenant-seven"]
    said = "application failed: Qwen/Qwen3-235B of tenant-six at application/xml"
    assert redacted(said, [], whole) == said
    assert redacted(said, ["tenant-six-and-more"], whole) == said.replace("tenant-six", "***")
    assert redacted("a TENANT-SEVEN, qwen%2Fqwen3-30b-a3b", [], whole) == "a ***, ***"
    assert redacted("tenant-tenant-seven", [], ["tenant-tenant-six", "tenant-seven"]) == "tenant-***"


def test_the_longest_that_is_there_is_hidden() -> None:
    assert redacted("tenant-seven-2", ["tenant-seven-2"], ["tenant-seven"]) == "***"
    assert redacted("tenant-seven-2", ["tenant-sex"], ["tenant-seven-2"]) == "***"


def test_much_that_begins_like_a_key_is_gone_through_at_once() -> None:
    begun = redacted(f"{KEY[:8]} " * 5_000, [KEY], [f"{KEY[:8]}{i}" for i in range(60)])
    assert begun == "*** " * 5_000


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


def test_headers_that_http_defines_are_no_secrets_nor_is_what_each_call_tells() -> None:
    headers = {
        "Content-Type": "application/json",
        "accept-language": "german, english",
        "user-agent": "trainer of mine",
        "x-model": "Qwen/Qwen3-30B-A3B",
        "x-host": "engine-1:8000",
        "x-content-type": "tenant-seven",
    }
    engine = Engine("http://engine-1:8000/v1", "Qwen/Qwen3-30B-A3B", headers=headers)
    said = "application/json of trainer of mine (german, english): no Qwen/Qwen3-30B-A3B at engine-1:8000"
    assert engine.redacted(said) == said
    assert engine.redacted("of tenant-seven") == "of ***"


def test_data_of_an_engine_are_told_without_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-0123456789")
    engine = Engine("http://e", "m", headers={"x-weights": "step-1200"}, key_variable="ENGINE_KEY")
    assert engine.without_key("step-1200 of sk-0123456789") == "step-1200 of ***"

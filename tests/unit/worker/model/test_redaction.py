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

from env_worker.model import redaction
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


@pytest.mark.parametrize(
    ("key", "said", "told"),
    [
        ("internal-4711-secret", "500 Internal Server Error", "500 Internal Server Error"),
        ("internal-4711-secret", "an internal error, internal-4711", "an *** error, ***"),
        ("internal-4711-secret", "INTERNAL-4711-SEC", "***"),
        ("internal-4711-secret", "INTERNAL-4711-S", "INTERNAL-4711-S"),
        ("internal", "500 Internal Server Error", "500 *** Server Error"),
    ],
)
def test_of_words_eight_characters_count_in_their_own_case(key: str, said: str, told: str) -> None:
    assert redacted(said, [key]) == told


@pytest.mark.parametrize(
    ("key", "label", "told"),
    [
        ("training-cluster-key", "training-step-0012", "training-step-0012"),
        ("training-step-001-secret-key", "training-step-0012", "***2"),
        ("TRAINING-STEP-0012", "training-step-0012", "***"),
        ("step-0012", "training-STEP-0012", "training-***"),
        ("policy-32b-key-77aa", "policy-32b@7", "policy-32b@7"),
        ("a/b/c/d/e", "m a%2Fb%2Fc%2Fd%2Fe", "m ***"),
    ],
)
def test_of_names_the_whole_key_counts_or_much_of_it(key: str, label: str, told: str) -> None:
    assert redacted(label, [key], name=True) == told


PARTS = st.lists(st.sampled_from(["ab/cd&ef", "AB/CD&EF", "ab/cd&e", "x", "0123456", "12345678"]), max_size=9)


@given(st.lists(PARTS.map("".join), max_size=5), PARTS.map("".join), st.integers(0, 60))
def test_what_is_told_is_the_beginning_of_all(values: list[str], said: str, most: int) -> None:
    for secrets, whole in (([], values), (values[:1], values[1:])):
        told = redacted(said, secrets, whole)
        assert redacted(said, secrets, whole, most=most) == told[:most]
        at = 0
        while at < len(said) and not secrets:  # the longest of those that are there, one by one
            low = said[at:].lower()
            fits = [len(v) for v in values if len(v) >= 8 and low.startswith(v.lower())]
            assert told.startswith("***" if fits else said[at])
            told, at = told[3 if fits else 1 :], at + max(fits, default=1)


def test_many_long_headers_that_begin_alike_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would have to be compared at each place."""
    compared: list[int] = []
    original = redaction._Sought.longest

    def noted(self: redaction._Sought, low: str, start: int) -> int:
        compared.append(start)
        return original(self, low, start)

    monkeypatch.setattr(redaction._Sought, "longest", noted)
    headers = ["ab/cd&ef" * 500 + f"{i:04d}" for i in range(64)]
    said = "ab/cd&ef" * 8000
    assert redacted(said, [], headers, most=550) == said[:550]
    assert len(compared) <= 69
    assert redacted(said + "0063", [], headers) == said[:-4000] + "***"


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


def test_the_name_of_the_model_is_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("policy-32b-key-77aa", "policy-32b"):
        monkeypatch.setenv("ENGINE_KEY", key)
        engine = Engine("http://e", "policy-32b", key_variable="ENGINE_KEY")
        assert engine.without_key("policy-32b") == "policy-32b"
        assert engine.without_key(f"policy-32b as {key}") == (
            "policy-32b as ***" if key != "policy-32b" else "*** as ***"
        )

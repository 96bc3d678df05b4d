"""Large JSON, decoded piece by piece: the same values as json.loads has, and no call that takes long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from env_worker.model import json_pieces
from env_worker.model.json_pieces import JsonLimitError, LargeObject, decode

WINDOWS = st.integers(16, 80)
BLANKS = st.sampled_from(["", "", "", " ", "\n", "\t \r\n", " " * 40])
ESCAPES = st.lists(
    st.sampled_from(
        [
            r"\\",
            r"\"",
            r"\n",
            r"\ud83d",
            r"\ude00",
            r"\ud83d\ude00",
            r"\u0041",
            "a",
            "é",
            "🙂",
            "\ud83d",
            "dd",
        ]
    ),
    max_size=40,
).map(lambda units: f'"{"".join(units)}"')
SCALARS = st.one_of(
    st.none().map(json.dumps),
    st.integers().map(json.dumps),
    st.floats().map(json.dumps),  # NaN and infinities among them
    st.text().map(json.dumps),
    st.text(max_size=60).map(lambda text: json.dumps(text, ensure_ascii=False)),
    ESCAPES,
    st.text('\\"/,[]{}:é🦜').map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(
        ["true", "-0", "1E+5", "12.50e-03", "1" * 50, r'"\ud83d\ude00"', r'"\ud83d"', r'"\/"', '"\ud800"']
    ),
    st.sampled_from(
        ["", "tru", "01", "1.", ".5", "+1", "-", r'"\x"', r'"\u12"', '"\x01"', "'a'", '"open', "]"]
    ),
)
KEYS = st.one_of(st.sampled_from(['"a"', '"b"', r'"\""']), st.text(max_size=30).map(json.dumps))


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts of lists and objects of `inner`, with blanks anywhere."""
    item = st.tuples(BLANKS, inner, BLANKS).map("".join)
    pair = st.tuples(BLANKS, KEYS, BLANKS, st.just(":"), item).map("".join)
    return st.one_of(
        st.lists(item, max_size=12).map(lambda items: f"[{','.join(items)}]"),
        st.lists(pair, max_size=6).map(lambda pairs: f"{{{','.join(pairs)}}}"),
    )


TEXTS = st.recursive(SCALARS, containers, max_leaves=40)


def outcome(decoder: Any, data: bytes) -> str:
    """What comes out of it, told so that NaN is NaN, 1 is not 1.0, and 0.0 is not -0.0."""
    try:
        value = decoder(data)
    except ValueError:
        return "refused"
    return repr(dict(value) if isinstance(value, LargeObject) else value)


def assert_same(data: bytes, window: int) -> None:
    """It does the same as json.loads."""
    assert outcome(lambda given: decode(bytearray(given), window=window), data) == outcome(json.loads, data)


@given(TEXTS, BLANKS, WINDOWS)
@settings(max_examples=300)
@example('{"a":1,"a":2}', "", 16)
@example("[" + "1," * 100 + "2.5e+30]", "", 16)
@example("[" + "[]," * 100 + "[[]]]", "", 16)
@example("[" + '"]",' * 100 + '"[,"]', "", 16)
@example('"' + "\\" * 64 + '"', "", 17)
@example('["' + "\\" * 63 + '"]', "", 17)
@example("[1,2]3", "", 16)
@example("", "", 16)
def test_it_accepts_what_json_accepts(text: str, blanks: str, window: int) -> None:
    assert_same((text + blanks).encode("utf-8", "surrogatepass"), window)


@given(TEXTS, WINDOWS, st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_of_broken_data_too(text: str, window: int, random: Any) -> None:
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    at = random.randrange(len(data) + 1)
    if random.random() < 0.5:
        del data[at:]
    else:
        data[at : at + 1] = random.choice(
            [b"\xff", b"\xc3", b"\xed\xa0\x80", b",", b'"', b"]", b"\\", b"\x00"]
        )
    assert_same(bytes(data), window)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
def test_of_any_encoding_that_json_knows(encoding: str) -> None:
    assert_same(json.dumps({"a": ["é🦜"] * 20}, ensure_ascii=False).encode(encoding), 16)


def test_objects_are_made_by_the_hook() -> None:
    data = json.dumps({"a": [{"b": 1}] * 50, "c": {"d": "x" * 50}}).encode()
    made = decode(data, lambda pairs: {key.upper(): value for key, value in pairs}, window=32)
    assert made == {"A": [{"B": 1}] * 50, "C": {"D": "x" * 50}}
    assert isinstance(made, LargeObject)


def test_large_containers_are_bounded_in_depth() -> None:
    assert_same(b"[" * 150 + b"]" * 150, 16)
    for data in (b"[" * 500 + b"]" * 500, b"[" * 1_000_000, b'{"a":' * 500 + b"1" + b"}" * 500):
        with pytest.raises(JsonLimitError, match="no more than 200 large lists and objects"):
            decode(data, window=16)


def test_objects_and_numbers_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "MOST_KEYS", 100)
    pairs = ",".join(f'"{key}":[]' for key in range(100))
    assert_same(f"{{{pairs}}}".encode(), 32)
    with pytest.raises(JsonLimitError, match="no more than 100 keys in an object at byte"):
        decode(f'{{{pairs},"a":1}}'.encode(), window=32)
    monkeypatch.setattr(json_pieces, "_MOST_DIGITS", 100)
    assert_same(b"[1." + b"1" * 97 + b"]", 32)
    with pytest.raises(JsonLimitError, match="a number of fewer than 100 bytes"):
        decode(b"[1." + b"1" * 98 + b"]", window=32)


def test_an_error_says_where() -> None:
    with pytest.raises(ValueError, match="expected ',' or ']' at byte 601, where '7]' is"):
        decode(b'["\xc3\xa9", ' + b"12, " * 148 + b"1 7]", window=64)
    with pytest.raises(ValueError, match="Expecting value at byte 3"):
        decode(b"[1," + b"x" * 100, window=16)


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 100_000 + "1]",
        "[" + "12345," * 100_000 + "1]",
        "[" + ("[" + "7," * 999 + "7],") * 200 + "[]]",
        "[" + '{"token":"token_id:5","logprob":-0.5,"top":[{},{}]},' * 5_000 + "{}]",
        '["' + r"\ud83d\ude00\n\\\"é\\" * 20_000 + '"]',
        '{"a":[1,' + "[[],1]," * 50_000 + '{"b":"\U0001f99c"}]}',
    ],
    ids=["empty", "flat", "rows", "objects", "escapes", "mixed"],
)
def test_no_call_is_given_more_than_a_window(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    given: list[int] = []

    class Measured(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            given.append(len(s))
            return super().raw_decode(s, idx)

    monkeypatch.setattr(json_pieces.json, "JSONDecoder", Measured)
    assert decode(text.encode(), window=4096) == json.loads(text)
    assert max(given) <= 4096 + 2  # the brackets around a run
    assert len(given) < len(text) / 4

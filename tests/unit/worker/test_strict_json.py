"""JSON that two readers could understand differently is refused."""

from __future__ import annotations

import json

import pytest

from env_worker.strict_json import InvalidFieldError, parse_json


@pytest.mark.parametrize(
    "value", [None, True, 0, 2**70, -1.5, "", "é🎉\x00", [], {}, {"a": {"a": 1}}, [{"b": [1e308]}]]
)
def test_reads_what_json_writes(value: object) -> None:
    assert parse_json(json.dumps(value), "field") == value
    assert parse_json(json.dumps(value, ensure_ascii=False), "field") == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("{'a': 1}", "Expecting property name"),
        ('{"a": 1,}', "property name"),
        ("1 2", "Extra data"),
        ("NaN", "the number NaN is not finite"),
        ("[Infinity]", "the number Infinity is not finite"),
        ('{"a": -Infinity}', "the number -Infinity is not finite"),
        ("1e999", "the number 1e999 is not finite"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' twice"),
        (r'"\ud800"', "surrogates not allowed"),
        (r'{"\udfff": 1}', "surrogates not allowed"),
        ("[" * 200_000, "recursion"),
        ("9" * 5_000, "digits"),
    ],
)
def test_refuses_what_readers_disagree_on(text: str, problem: str) -> None:
    with pytest.raises(InvalidFieldError, match=problem) as raised:
        parse_json(text, "task_json")
    assert raised.value.field == "task_json"
    assert str(raised.value).startswith("task_json is not strict JSON: ")
    assert len(str(raised.value)) < 500


def test_a_surrogate_pair_is_a_character() -> None:
    assert parse_json(r'"\ud83c\udf89"', "field") == "🎉"

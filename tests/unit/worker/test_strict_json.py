"""JSON that two readers could understand differently is refused."""

from __future__ import annotations

import json

import pytest

from env_worker import strict_json
from env_worker.strict_json import MAX_VALUES, InvalidFieldError, parse_json


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


class CountedKey(str):
    """A key that counts how often it is hashed or compared."""

    operations = 0

    def __hash__(self) -> int:
        CountedKey.operations += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedKey.operations += 1
        return super().__eq__(other)


def test_a_repeated_key_is_found_in_linear_time() -> None:
    def operations(count: int) -> int:
        pairs = [(CountedKey(number), 1) for number in (*range(count), count - 1)]
        CountedKey.operations = 0
        with pytest.raises(ValueError, match=f"the key '{count - 1}' twice"):
            strict_json._unique(pairs)
        return CountedKey.operations

    assert operations(2_000) < 3 * operations(1_000)


def test_sixty_thousand_keys_of_which_one_is_repeated_are_refused_by_name() -> None:
    text = "{" + "".join(f'"k{number}":1,' for number in range(60_000)) + '"k59999":2}'
    with pytest.raises(InvalidFieldError, match="'k59999' twice"):
        parse_json(text, "task_json")


def test_too_many_values_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InvalidFieldError, match=r"has about \d+ values .* the limit is 2000000; send a task"):
        parse_json("[" + "[]," * (MAX_VALUES // 2) + "[]]", "task_json")

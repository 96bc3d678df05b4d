"""References: each is checked before it is used, since workers wrote them."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from envtrio.v1.episode_pb2 import Trace
from hypothesis import given
from hypothesis import strategies as st

from env_client import (
    ArraysIncompleteError,
    InvalidRequestError,
    TokenRangeError,
    array_references,
)
from env_client.reference_lines import find_references
from env_client.training_arrays.excerpt import excerpt
from env_client.training_arrays.reference import ArrayReference
from tests.helpers.scripted_arrays import KEY, Branch, some_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

BRANCH = Branch(some_arrays(), incomplete={"sampling_mask": "node 3 of 41 tokens has none"})
REFERENCE = BRANCH.reference()


def test_a_mapping_and_its_text_are_the_same() -> None:
    reference = ArrayReference.of(REFERENCE)
    assert ArrayReference.of(json.dumps(REFERENCE)) == reference
    assert ArrayReference.of(json.dumps(REFERENCE).encode()) == reference
    assert (reference.tokens, list(reference.arrays)) == (6, list(BRANCH.arrays))
    assert reference.arrays["routed_experts"].dtype == np.uint16
    assert KEY not in str(reference)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instance": None}, "instance"),
        ({"instance": "a b"}, "instance"),
        ({"address": None}, "address"),
        ({"address": "worker"}, "address"),
        ({"address": "worker:0"}, "address"),
        ({"address": "worker:65536"}, "address"),
        ({"address": "unix:/tmp/x"}, "address"),
        ({"address": "xds:///worker:1"}, "address"),
        ({"key": None}, "key"),
        ({"key": "2" * 31}, "key"),
        ({"tokens": None}, "tokens"),
        ({"tokens": -1}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"tokens": 6.0}, "tokens"),
        ({"arrays": None}, "arrays"),
        ({"arrays": ["routed_experts"]}, "arrays"),
        ({"arrays": {"a": {"dtype": "<f8", "shape": [1], "bytes": 8}}}, "arrays"),
        ({"arrays": {"a": {"dtype": "u1", "shape": 1, "bytes": 1}}}, "shape"),
        ({"arrays": {"a": {"dtype": "u1", "shape": [-1], "bytes": 1}}}, "shape"),
        ({"arrays": {"a": {"dtype": "u1", "shape": [2], "bytes": 1}}}, "bytes"),
        ({"arrays": {"a": {"dtype": "u1", "shape": [2**62, 2**62], "bytes": 2**62}}}, "shape"),
        ({"tokens": 2**33}, "tokens"),
        ({"tokens": 5}, "routed_experts.*shape"),
        ({"arrays": {"routed_experts": {"dtype": "u1", "shape": [6, 8], "bytes": 48}}}, "shape"),
        (
            {"arrays": {"routed_experts": {"dtype": "u1", "shape": [6, 2**20, 2], "bytes": 6 * 2**21}}},
            "shape",
        ),
        ({"arrays": {"routed_experts": {"dtype": "u1", "shape": [6, 0, 2**62], "bytes": 0}}}, "shape"),
        ({"arrays": {"m.counts": {"dtype": "<i4", "shape": [7], "bytes": 28}}}, "shape"),
        ({"arrays": {"m.ids": {"dtype": "<i4", "shape": [2**23], "bytes": 2**25}}}, "shape"),
        ({"arrays": {"a b": {"dtype": "u1", "shape": [1], "bytes": 1}}}, "arrays"),
        ({"arrays": {f"a{n}": {"dtype": "u1", "shape": [1], "bytes": 1} for n in range(33)}}, "arrays"),
        ({"incomplete": {"a": ["b"]}}, "incomplete"),
        ({"incomplete": {"\x1b[31m": "b"}}, "incomplete"),
        ({"incomplete": ["a"]}, "incomplete"),
    ],
)
def test_a_malformed_one_says_what_is_wrong(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        ArrayReference.of(BRANCH.reference(**changes))
    assert re.search(field, caught.value.metadata["field"])
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", ["{", "[]", "1", b"\xff", None, 7, [REFERENCE]])
def test_what_is_no_reference_at_all(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="reference"):
        ArrayReference.of(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all that a reference is made of, itself included."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def replaced(path: tuple[Any, ...], value: Any) -> Any:
    """The reference with another value there."""
    if not path:
        return value
    changed = copy.deepcopy(REFERENCE)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(places(REFERENCE), key=str)), JSON)
def test_any_json_in_any_place_is_a_reference_or_refused(path: tuple[Any, ...], value: Any) -> None:
    found = replaced(path, value)
    for reference in (found, json.dumps(found)):
        try:
            checked = ArrayReference.of(reference)
        except InvalidRequestError as error:
            said = error
        else:
            assert str(checked).isprintable()
            continue
        assert "reference" in said.metadata["field"]
        assert len(str(said)) < 500


@pytest.mark.parametrize("path", list(places(REFERENCE)), ids=str)
def test_what_is_nested_without_an_end_is_a_reference_or_refused(path: tuple[Any, ...]) -> None:
    for deep in ({}, []):
        nested: Any = deep
        for _ in range(5000):
            nested = {"a": nested} if isinstance(deep, dict) else [nested]
        with contextlib.suppress(InvalidRequestError):  # What is not used may be anything.
            ArrayReference.of(replaced(path, nested))


def test_a_line_that_is_wrong_is_no_reason_to_leave_the_others() -> None:
    place = ("arrays", "routed_experts", "dtype")
    wrong = [replaced(place, value) for value in ([], {}, None, 5, ["u1"])]
    lines = [REFERENCE, *wrong, REFERENCE]
    text = [json.dumps({"traces": [{"info": {"training_arrays": [line]}}]}).encode() for line in lines]
    found = find_references(text)
    assert [fault.split(":")[0] for fault in found.faults] == ["line 2", "line 3", "line 4"]
    assert found.more_faults == 2
    assert list(found.keys.values()) == [{KEY}]


def test_reasons_are_short_and_printable() -> None:
    reference = ArrayReference.of(BRANCH.reference(incomplete={"a": "no\x1b[31m\n" + "x" * 10_000}))
    assert reference.incomplete["a"].startswith("no [31m x")
    assert reference.incomplete["a"].isprintable()
    assert len(reference.incomplete["a"]) == 500


def test_excerpts_are_short_and_printable() -> None:
    odd: list[Any] = [10**5000, slice(10**5000), {"\x1b": "\ud800"}]
    for value in (*odd, "x" * 10**6, b"x" * 10**4, [[]] * 10**5):
        assert len(excerpt(value)) < 100
        assert excerpt(value).isprintable()
    assert excerpt("text") == "'text'"


def test_a_malformed_key_is_not_shown() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ArrayReference.of(BRANCH.reference(key="f" * 33))
    assert "f" * 9 not in str(caught.value)


def test_fields() -> None:
    reference = ArrayReference.of(REFERENCE)
    assert reference.fields(None) == ()
    assert reference.fields(["top_logprobs", "routed_experts"]) == ("top_logprobs", "routed_experts")
    assert list(reference.selected(["top_logprobs"])) == [
        f"top_logprobs.{n}" for n in ("ids", "logprobs", "counts")
    ]
    with pytest.raises(ArraysIncompleteError, match="node 3 of 41") as caught:
        reference.fields(["routed_experts", "sampling_mask"])
    assert caught.value.metadata == {"field": "sampling_mask", "hole": "node 3 of 41 tokens has none"}
    assert caught.value.code == "FAILED_PRECONDITION"
    none: list[Any] = ["routed_experts", 5, {}, [None], [["x"]], [{}], ["\ud800"], [slice(3)]]
    for wrong in (*none, [], ["routed_experts"] * 2, ["routed"], ["top_logprobs.ids"]):
        with pytest.raises(InvalidRequestError, match="fields"):
            reference.fields(wrong)


@given(st.integers(0, 8), st.none() | st.integers(-10, 10), st.none() | st.integers(-10, 10))
def test_token_ranges_are_pythons_or_refused(tokens: int, first: int | None, last: int | None) -> None:
    reference = ArrayReference.of(Branch(some_arrays(tokens, tokens), tokens=tokens).reference())
    asked = slice(first, last)
    start, end, _ = asked.indices(tokens)
    fits = all(bound is None or -tokens <= bound <= tokens for bound in (first, last)) and start <= end
    if fits:
        assert reference.tokens_of(asked) == (start, end)
    else:
        with pytest.raises(TokenRangeError) as caught:
            reference.tokens_of(asked)
        assert caught.value.metadata["limit"] == str(tokens)


def test_other_token_ranges() -> None:
    reference = ArrayReference.of(REFERENCE)
    assert reference.tokens_of(None) == (0, 6)
    assert reference.tokens_of(slice(np.int64(1), -1, 1)) == (1, 5)
    huge = slice(0, 3, 10**5000)
    for wrong in (
        slice(0, 4, 2),
        slice(0.0, 4.0),
        slice("a", None),
        slice(0, 4, "1"),
        huge,
        (0, 4),
        3,
        range(3),
    ):
        with pytest.raises(InvalidRequestError, match="tokens"):
            reference.tokens_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(TokenRangeError):
        reference.tokens_of(slice(10**5000))


def test_references_of_a_trace() -> None:
    trace = Trace()
    assert array_references(trace) == []
    trace.info_json["training_arrays"] = json.dumps([REFERENCE, REFERENCE])
    assert array_references(trace) == [REFERENCE, REFERENCE]
    for wrong in ("", "{}", "[1]"):
        trace.info_json["training_arrays"] = wrong
        with pytest.raises(InvalidRequestError, match="training_arrays"):
            array_references(trace)

"""References: each is checked before it is used, since workers wrote them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from envtrio.v1.episode_pb2 import Trace
from hypothesis import given
from hypothesis import strategies as st

from env_client import (
    ArraysIncompleteError,
    InvalidRequestError,
    SyncArrayClient,
    TokenRangeError,
    array_references,
)
from env_client.training_arrays.hosts import AllowedHosts, checked_address
from env_client.training_arrays.reference import ArrayReference
from tests.helpers.scripted_arrays import KEY, Branch, some_arrays

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
        ({"arrays": {"a": {"dtype": "u1", "shape": [2**62, 2**62], "bytes": 2**62}}}, "bytes"),
        ({"incomplete": ["a"]}, "incomplete"),
    ],
)
def test_a_malformed_one_says_what_is_wrong(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        ArrayReference.of(BRANCH.reference(**changes))
    assert field in caught.value.metadata["field"]


@pytest.mark.parametrize("value", ["{", "[]", "1", b"\xff", None, 7, [REFERENCE]])
def test_what_is_no_reference_at_all(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="reference"):
        ArrayReference.of(value)


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
    for wrong in ("routed_experts", [], ["routed_experts"] * 2, ["routed"], ["top_logprobs.ids"]):
        with pytest.raises(InvalidRequestError, match="fields"):
            reference.fields(wrong)


@given(st.integers(0, 8), st.none() | st.integers(-10, 10), st.none() | st.integers(-10, 10))
def test_token_ranges_are_pythons_or_refused(tokens: int, first: int | None, last: int | None) -> None:
    reference = ArrayReference.of(Branch(some_arrays(), tokens=tokens).reference())
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
    for wrong in (slice(0, 4, 2), slice(0.0, 4.0), slice("a", None), (0, 4), 3, range(3)):
        with pytest.raises(InvalidRequestError, match="tokens"):
            reference.tokens_of(wrong)  # type: ignore[arg-type]


def test_references_of_a_trace() -> None:
    trace = Trace()
    assert array_references(trace) == []
    trace.info_json["training_arrays"] = json.dumps([REFERENCE, REFERENCE])
    assert array_references(trace) == [REFERENCE, REFERENCE]
    for wrong in ("", "{}", "[1]"):
        trace.info_json["training_arrays"] = wrong
        with pytest.raises(InvalidRequestError, match="training_arrays"):
            array_references(trace)


@pytest.mark.parametrize("address", ["worker-1.pool:5", "10.0.0.1:65535", "[::1]:1", "my_worker:50051"])
def test_addresses(address: str) -> None:
    assert checked_address(address, "address") == address


@pytest.mark.parametrize(
    ("hosts", "allowed"),
    [
        (["Worker"], True),
        (["worker:5"], True),
        (["other", "worker"], True),
        (["worker:6"], False),
        (["work"], False),
        ([], False),
        (None, True),
    ],
)
def test_hosts(hosts: list[str] | None, allowed: bool) -> None:
    listed = AllowedHosts(hosts)
    if allowed:
        listed.check(["WORKER:5"])
    else:
        with pytest.raises(InvalidRequestError, match="not on this client's list"):
            listed.check(["WORKER:5"])


def test_hosts_of_ipv6_and_a_single_text() -> None:
    for hosts in (["::1"], ["[::1]"], ["[::1]:5"]):
        AllowedHosts(hosts).check(["[::1]:5"])
    with pytest.raises(InvalidRequestError, match="a list of hosts"):
        AllowedHosts("worker")


def test_a_client_with_a_list_sends_nothing_elsewhere() -> None:
    with SyncArrayClient(hosts=["trusted"]) as client:
        calls = (
            lambda: client.fetch(REFERENCE),
            lambda: client.fetch_many([REFERENCE]),
            lambda: client.release(REFERENCE),
            lambda: client.release_owner(BRANCH.address, "me"),
        )
        for call in calls:
            with pytest.raises(InvalidRequestError, match=r"127\.0\.0\.1:1.*trusted"):
                call()
        assert len(client._core._links) == 0

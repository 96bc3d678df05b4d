"""Large JSON, written piece by piece: the same text as json.dumps has, and no call that takes long."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model import json_writing
from env_worker.model.engine import Engine
from env_worker.model.http import Connections
from env_worker.model.json_writing import is_large, write
from tests.helpers.scripted_http import ScriptedHttp, says

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
KEYS = st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=9), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=5)
    ),
    max_leaves=40,
)


def dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


@pytest.fixture
def small() -> Iterator[None]:
    """Windows of a few characters and values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_writing, "WINDOW", 7)
        patch.setattr(json_writing, "_MOST_VALUES", 5)
        patch.setattr(json_writing, "_RUN", 3)
        yield


@given(VALUES, st.integers(1, 12), st.integers(1, 8), st.integers(1, 4))
def test_it_is_what_json_has(value: Any, window: int, values: int, run: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_writing, "WINDOW", window)
        patch.setattr(json_writing, "_MOST_VALUES", values)
        patch.setattr(json_writing, "_RUN", run)
        try:
            expected = dumped(value)
        except ValueError:  # an infinity
            with pytest.raises(ValueError, match="not JSON compliant"):
                write(value)
        else:
            assert write(value) == expected


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("value", [float("nan"), "\ud83d" * 20, {"a" * 20: ["\ud83d"]}, {1}, [{2}] * 9])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        write(value)


def test_no_call_is_given_more_than_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = [0, 0]
    original = json_writing._dumps

    def noted(value: object) -> str:
        assert not is_large(value)
        text = original(value)
        longest[:] = max(longest[0], len(text)), longest[1] + 1
        return text

    monkeypatch.setattr(json_writing, "_dumps", noted)
    body = {"images": ["a" * (1 << 20)] * 3, "ids": list(range(100_000)), "deep": [{"x": [1] * 9000}] * 3}
    assert write(body) == dumped(body)
    assert longest[0] < 256 * 1024
    assert longest[1] < 400


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ("a" * json_writing.WINDOW, False),
        ("a" * (json_writing.WINDOW + 1), True),
        ({"a": ["b" * 70_000, {"c" * 70_000: 1}]}, True),
        ([1] * 8192, False),
        ([1] * 8193, True),
        ([[1] * 100] * 100, True),
        ([{str(key): 1 for key in range(100)}] * 100, True),
        (b"a" * 1_000_000, False),
        (None, False),
    ],
)
def test_what_is_large(value: object, large: bool) -> None:
    assert is_large(value) is large


def test_what_holds_itself_is_large_and_cannot_be_written() -> None:
    value: list[Any] = []
    value.append(value)
    value.append(value)
    assert is_large(value)
    with pytest.raises(RecursionError):
        write(value)


# Requests.


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The bodies that were written beside the loop."""
    bodies: list[object] = []

    def noted(body: object) -> bytes:
        bodies.append(body)
        return write(body)

    monkeypatch.setattr("env_worker.model.http.write", noted)
    return bodies


def engine_at(server: ScriptedHttp) -> Engine:
    return Engine(server.url, "m")


async def test_a_large_body_is_written_beside_the_loop(written: list[object]) -> None:
    engines = Connections()
    large = {"model": "m", "text": "é🦜" * json_writing.WINDOW}
    async with ScriptedHttp(says({"n": 1}), says({"n": 2})) as server:
        for body in (large, {"model": "m"}):
            await engines.post(engine_at(server), "x", body, 20.0)
    await engines.close()
    assert [seen.body for seen in server.requests] == [large, {"model": "m"}]
    assert {seen.headers["Content-Type"] for seen in server.requests} == {"application/json"}
    assert written == [large]


@pytest.mark.parametrize("wrong", [{1}, float("nan"), "\ud83d"])
async def test_a_large_body_that_is_no_json_is_the_callers_fault(wrong: object) -> None:
    engines = Connections()
    async with ScriptedHttp() as server:
        with pytest.raises((TypeError, ValueError)):
            await engines.post(engine_at(server), "x", {"a": "a" * 300_000, "wrong": wrong}, 20.0)
    await engines.close()
    assert not server.requests

"""What crosses from an environment's process: plain types, and nothing that its worker has to import."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections import OrderedDict, defaultdict, namedtuple
from enum import Enum, IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from env_worker.isolate.pickling import PlainPickler, loads

if TYPE_CHECKING:
    from collections.abc import Callable

Pair = namedtuple("Pair", "one other")


class Text(str):
    """Says something else of itself."""

    def __str__(self) -> str:
        return "?"


class Colour(str, Enum):  # noqa: UP042  # whose str() is another
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Share(float):
    def __float__(self) -> float:
        return -1.0


class Raw(bytes):
    pass


class Row(np.ndarray[Any, Any]):
    pass


def crossed(value: object) -> Any:
    file = io.BytesIO()
    PlainPickler(file, 5, buffer_callback=lambda _: True).dump(value)
    return loads(file.getvalue(), ())


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Text("text"), "text"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Share(0.5), 0.5),
        (Raw(b"raw"), b"raw"),
        (Pair(1, Text("x")), (1, "x")),
        (OrderedDict(a=Level.HIGH), {"a": 3}),
        (defaultdict(list, {Text("k"): [Share(2)]}), {"k": [2.0]}),
    ],
)
def test_subclasses_arrive_as_what_they_are_built_on(value: object, plain: object) -> None:
    found = crossed(value)
    assert found == plain
    assert repr(found) == repr(plain), "all the way down"


@pytest.mark.parametrize(
    "value", [None, True, 1.5, {1, 2}, frozenset({3}), bytearray(b"x"), 1 + 2j, np.float32(0.5), np.int64(7)]
)
def test_plain_values_and_numbers_of_numpy_stay(value: object) -> None:
    found = crossed(value)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "bool", "<U3"])
def test_arrays_of_any_kind_stay(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for sent in (array, array.T, array[:, ::2], array.view(Row)):
        found = crossed(sent)
        assert type(found) is np.ndarray
        assert found.dtype == array.dtype
        assert np.array_equal(found, sent)


@pytest.mark.parametrize("value", [Path("x"), object(), slice(1), ValueError("x")])
def test_anything_else_is_refused_where_it_is_written(value: object) -> None:
    with pytest.raises(TypeError, match=f"{type(value).__name__}, which only .* write built-in types"):
        crossed(value)


@pytest.mark.parametrize("named", [os.system, eval, print, Path, os.path.join])
def test_nothing_else_is_read(named: Callable[..., object]) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no type of an episode"):
        loads(pickle.dumps(named), ())


def test_nothing_is_imported() -> None:
    data = b"\x80\x05\x8c\x04this\x8c\x01s\x93."  # the name s of the module this
    assert "this" not in sys.modules
    with pytest.raises(pickle.UnpicklingError):
        loads(data, ())
    assert "this" not in sys.modules

"""What an environment's process sends, in types that its worker knows: nothing is imported to read it."""

from __future__ import annotations

import io
import pickle
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_OURS: Final = ("env_worker.domain.", "env_worker.isolate.messages.")
_BUILT_IN: Final = frozenset({"bytearray", "complex", "frozenset", "set"})
_NUMPY: Final = frozenset({"_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"})
_FULL: Final = slice(None)

# By the methods of the base, because the subclass may have others: an enum's str is not its text.
_PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: lambda value: bytes.__getitem__(value, _FULL),
    tuple: lambda value: tuple.__getitem__(value, _FULL),
    list: list.copy,
    dict: dict.copy,
    np.ndarray: np.asarray,
}

_AS_THEY_ARE: Final = (
    *(np.generic, np.dtype),
    *(type, FunctionType, BuiltinFunctionType, pickle.PickleBuffer),  # of which pickles of those are made
)

ReadBuffer: TypeAlias = "bytes | bytearray | memoryview"


class PlainPickler(pickle.Pickler):
    """Pickles an instance of a subclass of str, int, float, bytes, tuple, list, dict or ndarray as one of
    that type, an enum's member for example. TypeError naming the type of what else a worker does not
    know."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if isinstance(obj, _AS_THEY_ARE):
            return NotImplemented
        if _known(kind.__module__, kind.__qualname__):
            return NotImplemented
        for base in kind.__mro__:
            if base in _PLAIN:
                return _same, (_PLAIN[base](obj),)
        raise TypeError(
            f"the episode holds an instance of {kind.__module__}.{kind.__qualname__}, which only the "
            "environment's own process knows: write built-in types, numpy arrays and those of env_worker, or "
            "run without --isolate process"
        )


def loads(data: ReadBuffer, buffers: Iterable[ReadBuffer]) -> Any:
    """What a `PlainPickler` has pickled. UnpicklingError where it names something else than the types of
    episodes and messages."""
    return _KnownUnpickler(io.BytesIO(data), buffers=buffers).load()


class _KnownUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if _known(module, name) or (module, name) == (__name__, _same.__name__):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no type of an episode")


def _known(module: str, name: str) -> bool:
    if module == "builtins":
        return name in _BUILT_IN
    if module.partition(".")[0] == "numpy":
        return name in _NUMPY
    return f"{module}.".startswith(_OURS) and "." not in name


def _same(value: Any) -> Any:
    """Stands for a type's name in a pickle, which has to have one."""
    return value

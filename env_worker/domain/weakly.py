"""Callbacks from a part to its owner that do not keep the owner alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Owner = TypeVar("Owner")
P = ParamSpec("P")


def weakly(method: Callable[Concatenate[Owner, P], Any], owner: Owner) -> Callable[P, None]:
    """Calls `method` of `owner` while that lives, and nothing after that.

    An owner that its parts call back would else be freed by the cyclic collector only: whole episodes would
    wait for it, and going through them takes it tens of milliseconds.
    """
    reference = weakref.ref(owner)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if (alive := reference()) is not None:
            method(alive, *args, **kwargs)

    return call

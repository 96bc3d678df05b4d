"""What local workers inherit of the broker's environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADDRESSES: Final = ("ENV_WORKER_ADVERTISE", "ENV_WORKER_METRICS")


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """All of it but an address that only one of the workers could have. Port 0 is a free one for each."""
    return {name: value for name, value in variables.items() if not _is_of_one(name, value)}


def not_inherited(variables: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that local workers are not given."""
    return [
        f"the variable {name} is {value!r} and is not passed on to the local workers: only one of them could "
        "have that address; with port 0 each picks a free one, and logs it"
        for name, value in variables.items()
        if _is_of_one(name, value)
    ]


def _is_of_one(name: str, value: str) -> bool:
    return name in _ADDRESSES and bool(value) and not value.endswith(":0")

"""What local workers inherit of the broker's environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADDRESSES: Final = ("ENV_WORKER_ADVERTISE", "ENV_WORKER_METRICS")


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """All of it but an address that only one of the workers could have. Port 0 is a free one for each."""
    return {
        name: value for name, value in variables.items() if name not in _ADDRESSES or value.endswith(":0")
    }

"""Addresses of workers, and which of them may be called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from env_client.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_MAX_SHOWN: Final = 200


def checked_address(value: object, name: str) -> str:
    """A "HOST:PORT"; IPv6 addresses stand in brackets.

    Raises:
        InvalidRequestError: it is not. Other ways to write a target, such as "unix:PATH", are none.
    """
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[2]) < 2**16:
        raise InvalidRequestError(
            f"{name}: found {repr(value)[:_MAX_SHOWN]}, expected HOST:PORT as the worker advertises it; see "
            "its --advertise",
            metadata={"field": name},
        )
    return match[0]


class AllowedHosts:
    """Which addresses may be called. A worker writes them, so a trainer need not trust them.

    Args:
        hosts: "HOST" or "HOST:PORT" each, without regard to case; None: all.
    """

    def __init__(self, hosts: Collection[str] | None) -> None:
        if isinstance(hosts, str | bytes):
            raise InvalidRequestError(
                f"hosts: found the text {hosts!r}, expected a list of hosts, even of one",
                metadata={"field": "hosts"},
            )
        self._hosts = None if hosts is None else frozenset(map(_plain, hosts))

    def check(self, addresses: Iterable[str]) -> None:
        """Refuse an address that is not on the list.

        Raises:
            InvalidRequestError: one is not.
        """
        if self._hosts is None:
            return
        for address in addresses:
            if not self._hosts & {_plain(address), _plain(address.rpartition(":")[0])}:
                listed = ", ".join(sorted(self._hosts))[:_MAX_SHOWN] or "it is empty"
                raise InvalidRequestError(
                    f"address {address}: its host is not on this client's list ({listed}), so nothing was "
                    "sent; add it to hosts if that worker is yours",
                    metadata={"field": "address", "value": address},
                )


def _plain(host: str) -> str:
    return host.lower().replace("[", "").replace("]", "")

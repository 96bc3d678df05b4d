"""Addresses of workers, and which of them may be called."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from env_client.errors import InvalidRequestError
from env_client.training_arrays.excerpt import excerpt

if TYPE_CHECKING:
    from collections.abc import Collection

    import grpc

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):([0-9]{1,5})")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
_IPV6: Final = re.compile(r"\[([0-9a-fA-F:.]{2,45})\]|([0-9a-fA-F:.]{2,45})")
_MAX_SHOWN: Final = 200


class _Place(NamedTuple):
    """A host in the one way in which it is compared, and its port; None: all of its ports."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def checked_address(value: object, name: str) -> str:
    """A "HOST:PORT"; IPv6 addresses stand in brackets.

    Raises:
        InvalidRequestError: it is not. Other ways to write a target, such as "unix:PATH", are none.
    """
    if not isinstance(value, str) or _parsed(value) is None:
        raise InvalidRequestError(
            f"{name}: found {excerpt(value)}, expected HOST:PORT as the worker advertises it; see its "
            "--advertise",
            metadata={"field": name},
        )
    return value


def dial_target(address: str) -> str:
    """What to dial for the "HOST:PORT" of a worker.

    With its scheme named, an address that a worker wrote cannot choose another, such as "unix:1".
    """
    return f"dns:///{address}"


class AllowedHosts:
    """Which addresses may be called. A worker writes them, so a trainer need not trust them.

    Args:
        hosts: "HOST" or "HOST:PORT" each, without regard to case, IPv6 with brackets where a port follows;
            None: all.
        credentials: what calls will carry: never to whatever host a reference names, so they need a list.

    Raises:
        InvalidRequestError: an argument is malformed, or there are credentials and no list.
    """

    def __init__(
        self, hosts: Collection[str] | None, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        if hosts is None and credentials is not None:
            raise InvalidRequestError(
                "credentials without hosts: found a client that would show them to whatever address a "
                "reference names, expected a list; name the workers' hosts, e.g. hosts=['10.0.0.7']",
                metadata={"field": "hosts"},
            )
        self._places = None if hosts is None else _places(hosts)

    def check(self, addresses: Iterable[str]) -> None:
        """Refuse an address that is not on the list. Each is one that `checked_address` has let pass.

        Raises:
            InvalidRequestError: one is not.
        """
        if self._places is None:
            return
        for address in addresses:
            place = _parsed(address)
            if place is None or not self._places & {place, place._replace(port=None)}:
                listed = ", ".join(sorted(map(str, self._places)))[:_MAX_SHOWN] or "it is empty"
                raise InvalidRequestError(
                    f"address {address}: its host is not on this client's list ({listed}), so nothing was "
                    "sent; add it to hosts if that worker is yours",
                    metadata={"field": "address", "value": address},
                )


def _places(hosts: object) -> frozenset[_Place]:
    if isinstance(hosts, str | bytes) or not isinstance(hosts, Iterable):
        raise InvalidRequestError(
            f"hosts: found {excerpt(hosts)}, expected a list of hosts, even of one",
            metadata={"field": "hosts"},
        )
    places = set()
    for entry in hosts:
        place = (_parsed(entry) or _host(entry)) if isinstance(entry, str) else None
        if place is None:
            raise InvalidRequestError(
                f"hosts: found {excerpt(entry)}, expected HOST or HOST:PORT, as 10.0.0.7 or [fe80::1]:50052",
                metadata={"field": "hosts"},
            )
        places.add(place)
    return frozenset(places)


def _parsed(address: str) -> _Place | None:
    """Of a "HOST:PORT"; None: it is none."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 2**16:
        return None
    place = _host(match[1])
    return None if place is None else place._replace(port=int(match[2]))


def _host(text: str) -> _Place | None:
    if _NAME.fullmatch(text):
        return _Place(text.lower(), None)
    match = _IPV6.fullmatch(text)
    try:
        # One IPv6 address can be written in many ways.
        return match and _Place(str(ipaddress.IPv6Address(match[1] or match[2])), None)
    except ValueError:
        return None

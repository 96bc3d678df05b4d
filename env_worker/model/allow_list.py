"""Which endpoints a worker may ask, and how two spellings of one are told to be the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_PORTS: Final = {"http": 80, "https": 443}
_ANY: Final = "*"
# What is no URL character may be read in one way here and in another by who opens the connection.
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9\-._~:/\[\]%*]+")
# With _, which is in no domain, but in the names that Docker gives to services.
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9._\-]*[a-z0-9_])?|\[[0-9a-f]*:[0-9a-f:.]*\]")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9\-._~:]+")


@dataclass(frozen=True, slots=True)
class BaseUrl:
    """A base URL in its one spelling: lower-case scheme and host, a port, path segments."""

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]

    def __str__(self) -> str:
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return "/".join((f"{self.scheme}://{self.host}{port}", *self.path))


@dataclass(frozen=True, slots=True)
class _Entry:
    scheme: str
    host: str
    """Of `*.example.com` ".example.com"."""
    port: int | None
    """None: any."""
    path: tuple[str, ...]

    def has(self, url: BaseUrl) -> bool:
        named = url.host.endswith(self.host) if self.host.startswith(".") else url.host == self.host
        return (
            named
            and url.scheme == self.scheme
            and self.port in (None, url.port)
            and url.path[: len(self.path)] == self.path
        )


def base_url(text: str) -> BaseUrl:
    """The base URL that `text` spells. ValueError saying what is wrong with it: http or https, a host, and
    nothing that could lead elsewhere: no user, query, fragment, `..`, escape or backslash."""
    scheme, host, port, path = _parts(text)
    if not _HOST.fullmatch(host):
        raise ValueError(f"its host {host[:80]!r} is none")
    return BaseUrl(scheme, host, _port(port, scheme), path)


class AllowList:
    """Base URLs that may be asked: an entry allows itself, and what lies below its path.

    In an entry the host may begin with `*.` (any host below that domain, not the domain itself), and the port
    may be `*`.

    ValueError naming the entry that is none.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self.texts: Final = tuple(entries)
        self._entries: Final = tuple(map(_entry, self.texts))

    def __contains__(self, url: BaseUrl) -> bool:
        return any(entry.has(url) for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _entry(text: str) -> _Entry:
    try:
        scheme, host, port, path = _parts(text)
        name = host.removeprefix("*.")
        if not _HOST.fullmatch(name) or (name != host and name.startswith("[")):
            raise ValueError(f"its host {host[:80]!r} is none; a wildcard is `*.` in front of a domain")
        number = None if port == _ANY else _port(port, scheme)
    except ValueError as error:
        raise ValueError(f"{text[:200]!r} is no endpoint that could be allowed: {error}") from error
    return _Entry(scheme, host.removeprefix("*") if name != host else host, number, path)


def _parts(text: str) -> tuple[str, str, str, tuple[str, ...]]:
    """Scheme, host, port ("" where none is given) and path segments."""
    if not _CHARACTERS.fullmatch(text):
        raise ValueError(
            "it is empty, or has characters that a base URL needs not; write it like http://engine:8000/v1"
        )
    # No user, query, fragment or escape is among those characters, so this is all that a URL can have.
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    place, _, path = rest.partition("/")
    if scheme not in _PORTS or not place:
        raise ValueError("it does not begin with http:// or https:// and a host")
    host, colon, port = place.lower().rpartition(":")
    if not colon or port.endswith("]"):  # no port: what was cut is part of an IPv6 address, or there is none
        host, port, colon = place.lower(), "", ""
    if colon and not port:
        raise ValueError("its port is missing behind the colon")
    segments = tuple(path.rstrip("/").split("/")) if path.strip("/") else ()
    for segment in segments:
        if not _SEGMENT.fullmatch(segment) or segment in (".", ".."):
            raise ValueError(f"its path has the segment {segment[:80]!r}")
    return scheme, host, port, segments


def _port(text: str, scheme: str) -> int:
    if not text:
        return _PORTS[scheme]
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= 65_535:
        raise ValueError(f"its port {text[:16]!r} is not between 1 and 65535")
    return int(text)

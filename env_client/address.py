"""Addresses of servers, as callers write them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from env_client.training_arrays.excerpt import excerpt

_HOST_PORT: Final = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[([0-9A-Za-z:.%_-]+)\]):([0-9]{1,5})")
_SCHEME: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|xds):(.+)", re.IGNORECASE | re.DOTALL)
_AUTHORITY: Final = re.compile(r"\A//[^/]*/")
_WEB: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def checked_target(value: object, name: str = "target") -> str:
    """What a client may dial: HOST:PORT, or one of gRPC's own ways to write more than that.

    Those are `dns:[//AUTHORITY/]HOST:PORT`, `ipv4:` and `ipv6:` with ADDRESS:PORT,..., `unix:PATH`,
    `unix-abstract:NAME` and `xds:///NAME`. A port is always asked for: gRPC would take 443 without a word,
    and what it cannot read it tries to resolve for ever.

    Args:
        value: the address.
        name: of the argument, or the flag, that it comes from.

    Raises:
        ValueError: it is none; the message has the value, without a password in it, and what to do.
    """
    if isinstance(value, str) and _is_target(value):
        return value
    # What stands before an @ would be a user and a password, and this goes into logs.
    shown = f"...@{value.rpartition('@')[2]}" if isinstance(value, str) and "@" in value else value
    raise ValueError(
        f"{name} is {excerpt(shown)}, expected HOST:PORT with a port from 1 to 65535, e.g. 127.0.0.1:7460 or "
        f"[::1]:7460, or gRPC's own dns:///HOST:PORT or unix:PATH; {_next_step(value)}"
    )


def _is_target(text: str) -> bool:
    if text != text.strip() or not text.isprintable():
        return False
    scheme = _SCHEME.fullmatch(text)
    # A host may have the name of a scheme, but gRPC would not take it for one.
    if scheme is None:
        return _is_host_port(text)
    kind, rest = scheme[1].lower(), scheme[2]
    match kind:
        case "dns":
            return _is_host_port(_AUTHORITY.sub("", rest, count=1))
        case "ipv4":
            return all(
                _is_host_port(each) and _is_ip(each.rpartition(":")[0], ipaddress.IPv4Address)
                for each in rest.split(",")
            )
        case "ipv6":
            return all(_is_host_port(each) and each.startswith("[") for each in rest.split(","))
        case "unix":
            return not rest.startswith("//") or rest.startswith("///")
        case _:
            return True


def _is_host_port(text: str) -> bool:
    match = _HOST_PORT.fullmatch(text)
    return (
        match is not None
        and 0 < int(match[2]) < 2**16
        and (match[1] is None or _is_ip(match[1], ipaddress.IPv6Address))
    )


def _is_ip(text: str, kind: type[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _next_step(value: object) -> str:
    text = value if isinstance(value, str) else ""
    if _is_host_port(text):
        return f"write a host of that name as 'dns:///{text}'"
    if (web := _WEB.match(text)) and not _SCHEME.fullmatch(text):
        return f"write it without {web[0]!r}, and without a path"
    if any(_is_host_port(f"[{address}]:1") for address in (text, text.rpartition(":")[0])):
        return "put an IPv6 address into brackets, and the port behind them"
    if text and not re.search(r"[:/\s]", text):
        return "add the port, which a broker or worker prints as it starts: 'listening on HOST:PORT'"
    return "give the address that a broker or worker prints as it starts: 'listening on HOST:PORT'"

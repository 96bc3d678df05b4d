"""One setting: a row of a table, from which a flag and a variable come, and the checks of its value."""

from __future__ import annotations

import math
import re
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from env_worker.parser import Parser

VARIABLE_PREFIX: Final = "ENV_WORKER_"
_HOST_PORT: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Za-z:.%_-]+\]):([0-9]{1,5})")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names flag, value, limit and next step."""


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str
    flag: str
    variable: str
    default: Any
    unit: str
    help: str
    type: type | None
    """What a value is read as; None: text."""


def setting(flag: str, default: Any, unit: str, help: str, *, type: type | None = None) -> Any:
    """A dataclass field that is a setting. `type` where the default does not tell it."""
    return field(default=default, metadata={"flag": flag, "unit": unit, "help": help, "type": type})


def table_of(settings: type) -> tuple[Setting, ...]:
    """Every setting of that dataclass, in the order in which help lists them."""
    return tuple(
        Setting(
            item.name,
            item.metadata["flag"],
            VARIABLE_PREFIX + item.metadata["flag"].removeprefix("--").replace("-", "_").upper(),
            item.default,
            item.metadata["unit"],
            item.metadata["help"],
            item.metadata["type"] or (type(item.default) if isinstance(item.default, (int, float)) else None),
        )
        for item in fields(settings)
    )


def add_flag(parser: Parser, row: Setting) -> None:
    """Add the row's flag and variable. One whose default is a tuple may be repeated."""
    default = "" if row.default in (None, (), False) else f"; default {row.default}"
    described: dict[str, Any] = {
        "dest": row.name,
        "env_var": row.variable,
        "help": f"{row.help} [{row.variable}{default}]".replace("%", "%%"),
    }
    if row.unit == "switch":
        described["action"] = "store_true"
    else:
        # Choices stay as they are typed.
        upper = row.unit.islower() and "|" not in row.unit
        described |= {"metavar": row.unit.upper() if upper else row.unit, "default": row.default}
        if isinstance(row.default, tuple):
            described |= {"action": "append", "default": None}
        elif row.type is not None:
            described["type"] = row.type
    parser.add_argument(row.flag, **described)


def check_range(flag: str, value: object, low: float, high: float) -> None:
    """SettingsError unless the value is a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise SettingsError(f"{flag} is {value!r}, expected a number from {low} to {high}")
    if not low <= value <= high:
        raise SettingsError(f"{flag} is {value}, expected {low} to {high}; choose a value in that range")


def check_address(flag: str, address: str, least_port: int) -> None:
    """SettingsError unless it is HOST:PORT with a port from `least_port` on."""
    match = _HOST_PORT.fullmatch(address)
    if match is None or not least_port <= int(match[1]) <= 65_535:
        raise SettingsError(
            f"{flag} is {address!r}, expected HOST:PORT with a port from {least_port} to 65535, "
            "e.g. 127.0.0.1:7460"
        )


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is an address of this host alone."""
    host = address.rpartition(":")[0].strip("[]")
    return host == "localhost" or host == "::1" or host.startswith("127.")

"""The parser of `env-client`, which says in one line what is wrong."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

import configargparse

from env_client.config import COMMANDS, settings_table
from env_client.outcomes import CANCEL_OUTCOMES

if TYPE_CHECKING:
    from env_client.config import Setting

_TYPES: Final = {"count": int, "timeout": float, "seed": int}
"""Of settings whose default is None and which are no text."""


class Parser(configargparse.ArgumentParser):  # type: ignore[misc]
    """Without the usage, which is many lines: of a process that was started by another, the last line that it
    logged may be all that is shown. Names the variable too, as the value may have come from there."""

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2."""
        for action in self._actions:
            flag, variable = "/".join(action.option_strings), getattr(action, "env_var", None)
            if variable and message.startswith(f"argument {flag}: "):
                message = message.replace(flag, f"{flag} ({variable})", 1)
        print(f"{self.prog}: error: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def make_parser() -> Parser:
    """The parser that the table makes, a sub-parser for each command; "command" names the chosen one."""
    parser = Parser(
        prog="env-client", description="Run episodes on an envtrio broker or worker.",
        allow_abbrev=False, add_env_var_help=False,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('envtrio')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command, purpose in COMMANDS.items():
        chosen = commands.add_parser(
            command, help=purpose, description=purpose, allow_abbrev=False, add_env_var_help=False
        )
        if command == "cancel":
            chosen.formatter_class = argparse.RawDescriptionHelpFormatter
            meanings = "".join(f"  {name}: {meaning}\n" for name, meaning in CANCEL_OUTCOMES.items())
            chosen.epilog = f"outcomes, of which TOO_LATE alone has exit code 1:\n{meanings}"
            chosen.add_argument("request_id", metavar="ID", help="the run: 32 lower-case hexadecimal digits")
        for setting in settings_table():
            if command in setting.helps:
                _add_setting(chosen, setting, setting.helps[command])
    return parser


def _add_setting(parser: Parser, setting: Setting, meaning: str) -> None:
    default = "" if setting.default in (None, "", False) else f"; default {setting.default}"
    described: dict[str, Any] = {
        "dest": setting.name,
        "env_var": setting.variable,
        "help": f"{meaning} [{setting.variable}{default}]".replace("%", "%%"),
    }
    if setting.unit == "switch":
        described["action"] = "store_true"
    else:
        described["default"] = setting.default
        described["metavar"] = setting.unit.upper() if setting.unit.islower() else setting.unit
        kind = str if setting.default is None else type(setting.default)
        described["type"] = _TYPES.get(setting.name, kind)
    parser.add_argument(setting.flag, **described)

"""A command's parser, which says in one line what is wrong."""

from __future__ import annotations

import sys
from typing import NoReturn

import configargparse


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

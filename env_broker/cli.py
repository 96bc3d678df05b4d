"""`env-broker`: the command line."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from env_broker.config import BrokerSettings, SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

_USAGE_ERROR = 2
_START_ERROR = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 stopped, 1 could not start, 2 wrong usage."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="env-broker", description="One address in front of many workers.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("serve", help="serve until SIGTERM; see `env-broker serve --help`", add_help=False)
    parser.parse_args(argv[:1])
    return _serve(argv[1:])


def _serve(argv: Sequence[str]) -> int:
    try:
        settings = BrokerSettings.from_arguments(argv)
    except SettingsError as error:
        print(f"env-broker serve: {error}", file=sys.stderr)
        return _USAGE_ERROR
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="time=%(asctime)s level=%(levelname)s module=%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    from env_broker.server import StartError, serve  # imports grpc, which --help can do without

    try:
        asyncio.run(serve(settings))
    except StartError as error:
        print(f"env-broker serve: {error}", file=sys.stderr)
        return _START_ERROR
    return 0

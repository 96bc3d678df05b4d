"""`env-broker`: the command line."""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, TextIO, cast

from env_broker.config import VARIABLE_PREFIX, BrokerSettings, SettingsError, make_parser, settings_table
from env_broker.exit_code import EXIT_CANNOT_START, EXIT_USAGE, HELP
from env_broker.log_stream import LogStream
from env_broker.parser import Parser
from env_broker.variables import unknown_variables
from env_broker.worker_settings import without_effect
from env_broker.worker_variables import not_inherited

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code; see exit_code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(prog="env-broker", description="One address in front of many workers.", epilog=HELP)
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('envtrio')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("serve", help="serve until SIGTERM; see `env-broker serve --help`", add_help=False)
    parser.parse_args(argv[:1])
    return _serve(argv[1:])


def _serve(argv: Sequence[str]) -> int:
    parser = make_parser()
    parser.epilog = HELP
    namespace = parser.parse_args(list(argv), env_vars=os.environ)
    try:
        settings = BrokerSettings.from_namespace(namespace)
    except SettingsError as error:
        print(f"env-broker serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    stream, stderr = LogStream.of_stderr(), sys.stderr
    sys.stderr = cast("TextIO", stream)  # nothing that is said may hold up the loop, whoever reads it
    try:
        return _run(settings)
    finally:
        stream.close()
        sys.stderr = stderr


def _run(settings: BrokerSettings) -> int:
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="time=%(asctime)s level=%(levelname)s module=%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    known = {setting.variable for setting in settings_table()}
    for warning in unknown_variables(os.environ, VARIABLE_PREFIX, known):
        log.warning("%s", warning)
    for warning in not_inherited(os.environ) if settings.most_workers else ():
        log.warning("%s", warning)
    if warning := without_effect(settings):
        log.warning("%s", warning)
    # These import grpc, which --help can do without.
    from env_broker import event_loop
    from env_broker.listening import StartError
    from env_broker.serve import serve

    try:
        return event_loop.run(serve(settings))
    except StartError as error:
        print(f"env-broker serve: {error}", file=sys.stderr)
        return EXIT_CANNOT_START

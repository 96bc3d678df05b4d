"""The command `env-worker`."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from env_worker.exit_codes import EXIT_OK, EXIT_UNFINISHED, EXIT_USAGE, MEANINGS
from env_worker.leftovers import Leftovers
from env_worker.log_stream import LogStream
from env_worker.stop_signals import StopSignals
from env_worker.variables import unknown_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from env_worker.parser import Parser

_USAGE: Final = """usage: env-worker serve [options]

commands:
  serve    run episodes for clients or a broker; see: env-worker serve --help

options:
  -h, --help  show this
  --version   show the version
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; ends the process. Exit codes: those of `serve`, 2 if the worker cannot start."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
        sys.exit(EXIT_OK)
    if given[:1] == ["--version"]:
        from importlib.metadata import version

        print("env-worker", version("envtrio"))
        sys.exit(EXIT_OK)
    if given[:1] != ["serve"]:
        _fail(f"expected the command serve, got {given[0] if given else 'nothing'!r}; see: env-worker --help")
    leftovers = Leftovers()
    signals = StopSignals(lambda: _end_at_start(leftovers))
    signals.install()
    # gRPC's own handlers stop its threads around a fork, and now and then the child crashes in them. A child
    # that an environment forks has no use for the worker's gRPC.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Only now what takes its time: a signal during these imports ends the process without a traceback too.
    from env_worker.config import (
        KNOWN_VARIABLES,
        LOCAL_SLOT_VARIABLE,
        VARIABLE_PREFIX,
        SettingsError,
        WorkerSettings,
    )

    stream = LogStream.of_stderr()
    atexit.register(stream.close)  # and so behind what the next line registers, which may log
    leftovers.mark(inherited=LOCAL_SLOT_VARIABLE in os.environ)  # as a broker starts its workers
    from env_worker.envs.registry import EnvironmentLoadError
    from env_worker.hook import HookLoadError
    from env_worker.listening import ServerStartError
    from env_worker.serving import serve

    namespace = _parser().parse_args(given[1:], env_vars=os.environ)
    sys.path.insert(0, os.getcwd())  # for module:attribute, as with python -m
    try:
        settings = WorkerSettings.from_namespace(namespace)
        _set_up_logging(settings.log_level, stream)
        for warning in unknown_variables(os.environ, VARIABLE_PREFIX, KNOWN_VARIABLES):
            logging.getLogger(__name__).warning("%s", warning)
        code = serve(settings, signals=signals)
    except (SettingsError, HookLoadError, EnvironmentLoadError, ServerStartError) as error:
        leftovers.end()
        _fail(str(error))
    _exit(code, settings.kill_seconds, leftovers, stream)


def _parser() -> Parser:
    from env_worker.config import make_parser

    parser = make_parser()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    codes = "".join(f"  {code}  {meaning}\n" for code, meaning in MEANINGS.items())
    parser.epilog = (
        f"exit codes (the first of 3, 4 and 5 that applies; only 3 takes the place of 1 or 6):\n{codes}"
    )
    return parser


def _exit(code: int, seconds: float, leftovers: Leftovers, stream: LogStream) -> NoReturn:
    """End the process, also where a thread of a hook or an environment does not end, or nobody reads.

    What environments left behind ends last, with the interpreter: an executor of a hook's may have processes
    that still write what was kept.
    """
    watchdog = threading.Timer(max(seconds, 1.0), _exit_now, (code, leftovers, stream))
    watchdog.daemon = True
    watchdog.start()
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # an environment closed it; the interpreter would make exit code 120 of that
            setattr(sys, name, None)
    if code == EXIT_UNFINISHED:
        _exit_now(code, leftovers, stream)  # waiting for those threads is over
    sys.exit(code)


def _exit_now(code: int, leftovers: Leftovers, stream: LogStream | None = None) -> NoReturn:
    try:
        leftovers.end()
        if stream is not None:
            stream.close()
    finally:
        os._exit(code)


def _end_at_start(leftovers: Leftovers) -> NoReturn:
    """A signal before the worker serves: there is nothing to lose, whatever module is being imported."""
    try:
        os.write(2, b"env-worker: told to stop before it served; nothing was lost\n")
    finally:
        _exit_now(EXIT_OK, leftovers)


def _set_up_logging(level: str, stream: LogStream) -> None:
    logging.basicConfig(
        # Not fd 2: an environment that closes it would have the log written to whatever is opened next, which
        # may be another run's connection.
        stream=stream,
        level=level.upper(),
        format="time=%(asctime)s level=%(levelname)s module=%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


def _fail(message: str) -> NoReturn:
    print(f"env-worker: error: {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_USAGE)

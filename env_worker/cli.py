"""The command `env-worker`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from env_worker.exit_codes import EXIT_OK, EXIT_UNFINISHED, EXIT_USAGE, MEANINGS
from env_worker.leftovers import Leftovers
from env_worker.stop_signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Sequence

    import configargparse

_USAGE: Final = """usage: env-worker serve [options]

commands:
  serve    run episodes for clients or a broker; see: env-worker serve --help
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; ends the process. Exit codes: those of `serve`, 2 if the worker cannot start."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
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
    from env_worker.config import SettingsError, WorkerSettings
    from env_worker.envs.registry import EnvironmentLoadError
    from env_worker.hook import HookLoadError
    from env_worker.server import ServerStartError, serve

    namespace = _parser().parse_args(given[1:], env_vars=os.environ)
    sys.path.insert(0, os.getcwd())  # for module:attribute, as with python -m
    leftovers.mark(inherited=namespace.exit_with_stdin)  # as a broker starts its workers
    try:
        settings = WorkerSettings.from_namespace(namespace)
        _set_up_logging(settings.log_level)
        code = serve(settings, signals=signals)
    except (SettingsError, HookLoadError, EnvironmentLoadError, ServerStartError) as error:
        leftovers.end()
        _fail(str(error))
    _exit(code, settings.kill_seconds, leftovers)


def _parser() -> configargparse.ArgumentParser:
    from env_worker.config import make_parser

    parser = make_parser()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    codes = "".join(f"  {code}  {meaning}\n" for code, meaning in MEANINGS.items())
    parser.epilog = (
        f"exit codes (the first of 3, 4 and 5 that applies; only 3 takes the place of 1 or 6):\n{codes}"
    )
    return parser


def _exit(code: int, seconds: float, leftovers: Leftovers) -> NoReturn:
    """End the process, also where a thread of a hook or an environment does not end."""
    leftovers.end()
    logging.shutdown()
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # an environment closed it; the interpreter would make exit code 120 of that
            setattr(sys, name, None)
    if code == EXIT_UNFINISHED:
        os._exit(code)  # waiting for those threads is over
    watchdog = threading.Timer(max(seconds, 1.0), _exit_now, (code, leftovers))
    watchdog.daemon = True
    watchdog.start()
    sys.exit(code)


def _exit_now(code: int, leftovers: Leftovers) -> NoReturn:
    try:
        leftovers.end()  # what those threads have started meanwhile
    finally:
        os._exit(code)


def _end_at_start(leftovers: Leftovers) -> NoReturn:
    """A signal before the worker serves: there is nothing to lose, whatever module is being imported."""
    try:
        os.write(2, b"env-worker: told to stop before it served; nothing was lost\n")
    finally:
        _exit_now(EXIT_OK, leftovers)


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        # Not fd 2: an environment that closes it would have the log written to whatever is opened next, which
        # may be another run's connection.
        stream=os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace"),
        level=level.upper(),
        format="time=%(asctime)s level=%(levelname)s module=%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


def _fail(message: str) -> NoReturn:
    print(f"env-worker: error: {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_USAGE)

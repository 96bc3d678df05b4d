"""The command `env-worker`."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from env_worker.config import SettingsError, WorkerSettings, make_parser
from env_worker.envs.registry import EnvironmentLoadError
from env_worker.hook import HookLoadError
from env_worker.server import EXIT_UNFINISHED, ServerStartError, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_USAGE: Final = 2

_USAGE: Final = """usage: env-worker serve [options]

commands:
  serve    run episodes for clients or a broker; see: env-worker serve --help
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; ends the process. Exit codes: those of `serve`, 2 if the worker cannot start."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] in (["-h"], ["--help"]):
        print(_USAGE, end="")
        sys.exit(0)
    if given[:1] != ["serve"]:
        _fail(f"expected the command serve, got {given[0] if given else 'nothing'!r}; see: env-worker --help")
    namespace = make_parser().parse_args(given[1:], env_vars=os.environ)
    sys.path.insert(0, os.getcwd())  # for module:attribute, as with python -m
    try:
        settings = WorkerSettings.from_namespace(namespace)
        _set_up_logging(settings.log_level)
        code = serve(settings)
    except (SettingsError, HookLoadError, EnvironmentLoadError, ServerStartError) as error:
        _fail(str(error))
    _exit(code, settings.kill_seconds)


def _exit(code: int, seconds: float) -> NoReturn:
    """End the process, also where a thread of a hook or an environment does not end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if code == EXIT_UNFINISHED:
        os._exit(code)  # waiting for those threads is over
    watchdog = threading.Timer(max(seconds, 1.0), os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    sys.exit(code)


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="time=%(asctime)s level=%(levelname)s module=%(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


def _fail(message: str) -> NoReturn:
    print(f"env-worker: error: {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_USAGE)

"""A server, or a client in this process, that pings its peers some ten times as often as the real ones do.

`python -m tests.helpers.brisk_keepalive serve ...` is the server that the variable ENVTRIO_TEST_SERVER names,
env_worker or env_broker. What servers allow their peers stays as it is, one ping every 500 ms, so that a peer
which pinged too often would be found out.
"""

from __future__ import annotations

import importlib
import os
from typing import Final, TypeAlias

VARIABLE: Final = "ENVTRIO_TEST_SERVER"
PING_SECONDS: Final = 0.6
"""Between two pings, where the real ones let 5 s pass (a broker at its workers) or 10 s."""
TIMEOUT_SECONDS: Final = 0.6
"""After a ping; likewise."""

Options: TypeAlias = "tuple[tuple[str, int], ...]"
_SCALED: Final = {
    "grpc.keepalive_time_ms": int(PING_SECONDS * 1000),
    "grpc.keepalive_timeout_ms": int(TIMEOUT_SECONDS * 1000),
    "grpc.http2.ping_timeout_ms": int(TIMEOUT_SECONDS * 1000),
}


def brisk(options: Options) -> Options:
    """The same options, with shorter times."""
    return tuple((name, _SCALED.get(name, value)) for name, value in options)


def main() -> None:
    """Be that server."""
    package = os.environ[VARIABLE]
    options = importlib.import_module(f"{package}.channel_options")
    # Before the modules that use them are imported.
    options.SERVER_OPTIONS = brisk(options.SERVER_OPTIONS)  # type: ignore[attr-defined]
    options.CHANNEL_OPTIONS = brisk(options.CHANNEL_OPTIONS)  # type: ignore[attr-defined]
    raise SystemExit(importlib.import_module(f"{package}.cli").main())


if __name__ == "__main__":
    main()

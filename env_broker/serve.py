"""A broker as the main job of a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from env_broker.server import BrokerServer

if TYPE_CHECKING:
    from env_broker.config import BrokerSettings

log = logging.getLogger(__name__)


async def serve(settings: BrokerSettings) -> int:
    """Run a broker until SIGTERM or SIGINT. A second signal hurries it.

    Returns the exit code, which says what the stop has lost; see exit_code.

    Raises:
        StartError: the address cannot be bound.
    """
    server = BrokerServer(settings)
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            server.hurry()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await server.start()
    try:
        with contextlib.suppress(BrokenPipeError):  # whoever started us may not read what we say
            print(f"listening on {server.address}", flush=True)
        await stopping.wait()
        log.warning(
            "broker=%s stops: runs have %g s to finish, local workers up to %g s in all for replies that can "
            "still be taken back; a second signal ends them at once",
            server.instance[:8], settings.drain_seconds, settings.stop_seconds,
        )  # fmt: skip
    finally:
        await server.stop()
    return server.exit_code

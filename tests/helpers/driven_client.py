"""A client process that runs episodes as it is told, so that it can be killed or stopped in the middle.

    python -m tests.helpers.driven_client ADDRESS

Commands come as JSON lines on its standard input; its records go where the hooks' go:

    {"run": ID, ...}         EnvClient.run; "hold": true holds its confirmation, "fields": further arguments
    {"bare": ID, ...}        the same on the plain stub, without a session
    {"confirm": ID}          lets a held confirmation go
    {"abandon": ID}          cancels the task of that run

It says "ready", "delta ID" at each run's first delta, and "held ID". It leaves when its input ends.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from typing import TYPE_CHECKING, Any

from env_client import DeliveryUncertainError, EnvClient, EnvError
from env_client.courier import CancelCourier
from env_client.session_driver import Ticket
from tests.helpers.history import Asked, Ended, Returned, Uncertain
from tests.helpers.history_pipe import HistoryWriter
from tests.helpers.recorded_cancels import open_recorded_channel
from tests.helpers.recorded_client import RecordedSession
from tests.helpers.recorded_lane import record_lane
from tests.helpers.stub_client import StubClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_client.session_driver import Settlement
    from tests.helpers.history import History


class HoldingSession(RecordedSession):
    """A session that holds the confirmations of some runs until it is told to let them go."""

    def __init__(self, address: str, history: History) -> None:
        super().__init__(address, history)
        self.held: set[str] = set()
        self._waiting: dict[str, Callable[[Settlement], object]] = {}

    def confirm(self, request_id: str, settle: Callable[[Settlement], object]) -> Ticket:
        if request_id not in self.held:
            return super().confirm(request_id, settle)
        self._waiting[request_id] = settle
        say(f"held {request_id}")
        return Ticket(request_id, settle)

    def let_go(self, request_id: str) -> None:
        """Confirm it now."""
        self.held.discard(request_id)
        super().confirm(request_id, self._waiting.pop(request_id))

    def let_all_go(self) -> None:
        """Confirm all that wait, and hold no more."""
        self.held.clear()
        for request_id in tuple(self._waiting):
            self.let_go(request_id)


class DrivenClient:
    """Obeys commands."""

    def __init__(
        self, client: EnvClient, bare: StubClient, session: HoldingSession, history: History
    ) -> None:
        self._client, self._bare, self._session, self._history = client, bare, session, history
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def obey(self, command: dict[str, Any]) -> None:
        """Begin what is asked for."""
        if (run := command.get("run")) is not None:
            if command.get("hold"):
                self._session.held.add(run)
            self._tasks[run] = asyncio.create_task(
                self._run(run, command["task"], **command.get("fields", {}))
            )
        elif (run := command.get("bare")) is not None:
            fields = {"request_id": run, **command.get("fields", {})}
            self._tasks[run] = asyncio.create_task(self._run_bare(command["task"], fields))
        elif (run := command.get("confirm")) is not None:
            self._session.let_go(run)
        else:
            self._tasks[command["abandon"]].cancel()

    async def finish(self) -> None:
        """Wait for what was begun; nothing is held any more."""
        self._session.let_all_go()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, run: str, task: Any, **arguments: Any) -> None:
        seen = False

        def see(_: object) -> None:
            nonlocal seen
            if not seen:
                say(f"delta {run}")
            seen = True

        self._history.note(Asked, run)
        try:
            await self._client.run(task, request_id=run, on_delta=see, **arguments)
        except EnvError as error:
            if isinstance(error, DeliveryUncertainError):
                self._history.note(Uncertain, run)
            self._history.note(Ended, run, code=error.code, reason=error.reason, message=str(error)[:1000])
        except asyncio.CancelledError:
            self._history.note(Ended, run, code="CANCELLED")
            raise
        else:
            self._history.note(Ended, run, code="OK")
            self._history.note(Returned, run)

    async def _run_bare(self, task: Any, fields: dict[str, Any]) -> None:
        open_run = self._bare.start(task, **fields)
        await open_run.next()
        say(f"delta {open_run.run}")
        outcome = await open_run.finish()
        if outcome.code != "OK":
            await self._bare.cancel(outcome.run)


def say(line: str) -> None:
    """To whoever drives it, also from another thread."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _main(address: str) -> None:
    history = HistoryWriter()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    session = HoldingSession(address, history)
    courier = CancelCourier(functools.partial(open_recorded_channel, address, history))
    async with (
        StubClient(address, history) as bare,
        EnvClient(address, timeout=60.0, session=session, courier=courier) as client,
    ):
        record_lane(client, history, session.held)
        driven = DrivenClient(client, bare, session, history)
        say("ready")
        while line := await reader.readline():
            driven.obey(json.loads(line))
        await driven.finish()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))

"""The runs that one stream of a client's session carries."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from env_broker.client_hop import HopBrokenError, SessionHop
from env_broker.held_request import HeldRequest
from env_broker.session_frames import invalid
from env_broker.status import DETAILS_KEY, Refusal, short

if TYPE_CHECKING:
    from env_broker.run_carrier import RunCarrier
    from env_broker.session_frames import Opening
    from env_broker.session_outbox import Outbox, Outlet
    from env_broker.worker_cancel import PassedOn


class _Run:
    """A run and the task that carries it."""

    __slots__ = ("_request", "begun", "left", "name", "outlet", "task", "timer")

    def __init__(
        self, outlet: Outlet, request: HeldRequest | Refusal, carrier: RunCarrier, timeout: float | None
    ) -> None:
        self.outlet: Final = outlet
        self.name: Final = (
            f"number {outlet.number}" if isinstance(request, Refusal) else short(request.request_id)
        )
        """As messages name it."""
        self.begun = False
        """Whether its task came to run."""
        self._request: HeldRequest | Refusal | None = request
        self.task: Final = asyncio.create_task(carrier.carry(self._read, SessionHop(outlet, timeout)))
        self.timer: asyncio.TimerHandle | None = None
        self.left: Refusal | None = None
        """Why its task was cancelled."""

    def leave(self, because: Refusal) -> None:
        """End it as the handler of a Run is ended whose call is over. The first reason counts."""
        if self.left is None:
            self.left = because
            self.task.cancel()

    async def _read(self) -> HeldRequest:
        """What the carrier asks for first; once."""
        self.begun = True
        request, self._request = self._request, None
        if isinstance(request, HeldRequest):
            return request
        assert request is not None
        raise request


class ClientRuns:
    """Opens them, hands them their credit, and ends them: each by itself, or all with the stream.

    Args:
        outbox: what the stream has yet to tell.
    """

    def __init__(self, outbox: Outbox, carrier: RunCarrier) -> None:
        self._outbox: Final = outbox
        self._carrier: Final = carrier
        self._runs: Final[dict[int, _Run]] = {}
        self._last = -1

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, opening: Opening) -> None:
        """Carry a run. Refusal (INVALID_REQUEST) if its number does not rise."""
        number = opening.number
        if number <= self._last:
            raise invalid(
                f"open_run has run_number {number}, and {self._last} came before; count up",
                "open_run.run_number",
                value=number,
                limit=self._last,
            )
        self._last = number
        outlet = self._outbox.outlet(number, opening.credit)
        run = self._runs[number] = _Run(outlet, opening.request, self._carrier, opening.timeout)
        if opening.timeout is not None:
            late = partial(self._late, run, opening.timeout)
            run.timer = asyncio.get_running_loop().call_later(opening.timeout, late)
        run.task.add_done_callback(partial(self._ended, run))

    def credit(self, number: int, credit: int) -> None:
        """The client takes more of a run. Refusal (INVALID_REQUEST) if there never was such a run."""
        if (run := self._get("run_credit", number)) is not None:
            run.outlet.allow(credit)

    def leave(self, number: int) -> None:
        """The client wants no more of a run. Refusal as `credit`."""
        if (run := self._get("leave_run", number)) is not None:
            run.leave(
                Refusal(
                    "CALLER_LOST",
                    f"run {run.name} was left by its client, so its episode is not kept; send it again under "
                    "a new request_id if it is wanted after all",
                )
            )

    def abandon(self) -> None:
        """The stream is over, and every run of it ends. Synchronous: their workers hear of it in the next
        turn of the event loop."""
        self._outbox.close()
        for run in self._runs.values():
            run.task.cancel()

    async def gone(self) -> None:
        """Return when none is left."""
        await asyncio.gather(*(run.task for run in self._runs.values()), return_exceptions=True)

    def _get(self, frame: str, number: int) -> _Run | None:
        if number > self._last:
            raise invalid(
                f"{frame} has run_number {number}, and the last run that was opened is {self._last}; open it "
                "first",
                f"{frame}.run_number",
                value=number,
                limit=self._last,
            )
        return self._runs.get(number)

    def _late(self, run: _Run, timeout: float) -> None:
        run.leave(
            Refusal(
                "DEADLINE",
                f"run {run.name} took longer than its deadline of {timeout:g} s; allow it more time",
                value=timeout,
            )
        )

    def _ended(self, run: _Run, task: asyncio.Task[Refusal | PassedOn | None]) -> None:
        del self._runs[run.outlet.number]
        if run.timer is not None:
            run.timer.cancel()
        if not run.begun:
            self._carrier.left_at_once()
        if task.cancelled():
            _tell(run.outlet, run.left or Refusal("CALLER_LOST", "the run was left by the broker; report it"))
        elif not isinstance(task.exception(), HopBrokenError):
            _tell(run.outlet, task.result())


def _tell(outlet: Outlet, status: Refusal | PassedOn | None) -> None:
    if status is None:
        outlet.end()
    elif isinstance(status, Refusal):
        ((_, details),) = status.trailing_metadata()
        outlet.end(status.code.value[0], status.message, details)
    else:
        error = status.error
        found = dict(error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
        details = found if isinstance(found, bytes) else b""
        outlet.end(error.code().value[0], error.details() or "", details)

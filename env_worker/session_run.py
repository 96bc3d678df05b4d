"""One run in a session's stream: what is due of it, and what may be sent of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from env_worker.port import RunPort
from env_worker.session_frames import run_admitted, run_data_head, run_data_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.run import Run
    from env_worker.session_outbox import Outbox
    from env_worker.status import Refusal


class SessionRun:
    """The handler's side of a run's port, many of which share a stream. A `Sender` of its outbox.

    When the run has ended, what was due of it is dropped, save what stands in a message already. For one
    event loop.

    Args:
        credit: bytes that may be sent at first. While any is left a message may be sent, whatever its size.
        over: called once, when the run has ended: with itself and how it ended, None for OK.
    """

    __slots__ = ("_admitted", "_credit", "_outbox", "_over", "_prefix", "_queued", "number", "port", "run")

    def __init__(
        self, number: int, credit: int, outbox: Outbox, over: Callable[[SessionRun, Refusal | None], None]
    ) -> None:
        self.number: Final = number
        self.port: RunPort[Refusal] | None = RunPort()
        """Where the run comes from; None once it has ended, so that nothing holds on to it."""
        self.run: Run | None = None
        """The run, from its admission to its end."""
        self.port.on_news = self._news
        self._outbox: Final = outbox
        self._over: Final = over
        self._credit = credit
        self._prefix: Final = run_data_prefix(number)
        self._admitted = False
        self._queued = False
        """Whether its message waits in the outbox, or is being written."""

    def credit(self, size: int) -> None:
        """So many bytes more may be sent."""
        self._credit += size
        self._offer()

    def end(self, refusal: Refusal) -> None:
        """It was not admitted. Again, or after another end: changes nothing."""
        if self.port is not None:
            self.port.end(refusal)

    # What the outbox asks.

    @property
    def due(self) -> bytes | None:
        """What is to be written; None when the run has ended."""
        return None if self.port is None else self.port.waiting

    def take(self, size: int) -> bytes:
        """A message of `size` bytes is about to be written; the frame's head."""
        self._credit -= size
        return run_data_head(self._prefix, size)

    def written(self) -> None:
        """It was written, or taken back. Of the reply: settles the run, whose end is due from now on."""
        self._queued = False
        if self.port is not None:
            self.port.written()
            self._news()

    # What the port tells.

    def _news(self) -> None:
        if (port := self.port) is None:
            return
        if port.ended:
            self.port = self.run = None
            port.on_news = _unheard  # the run holds on to its port, and would hold on to the stream
            self._over(self, port.ending)
            return
        if port.opened and not self._admitted:
            self._admitted = True
            self._outbox.put(run_admitted(self.number))
        self._offer()

    def _offer(self) -> None:
        if not self._queued and self._credit > 0 and self.due is not None:
            self._queued = True
            self._outbox.put_sender(self)


def _unheard() -> None:
    """The news of a run that has ended."""

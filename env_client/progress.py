"""Showing how far a batch of runs has come: a live line on a terminal, else a plain line now and then."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from env_client.tally import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from env_client.tally import Tally


class Display(Protocol):
    """Shows a tally."""

    interval_seconds: float
    """How often it wants to be called."""

    def show(self, tally: Tally) -> None:
        """Show the tally as it is now."""

    def say(self, text: str) -> None:
        """Show a line of text, once."""


class PlainDisplay:
    """One line every few seconds."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_seconds = 3.0
        self._stream = stream
        self._clock = clock
        self._started = clock()

    def show(self, tally: Tally) -> None:
        """Print one line."""
        self.say(progress_text(tally, self._clock() - self._started))

    def say(self, text: str) -> None:
        """Print it."""
        print(text, file=self._stream, flush=True)


class RichDisplay:
    """A bar that is redrawn in place."""

    def __init__(self, stream: TextIO, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.interval_seconds = 0.2
        self._started = time.monotonic()
        self._bar = Progress(
            BarColumn(), TextColumn("{task.description}"), console=Console(file=stream), auto_refresh=False
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> RichDisplay:
        self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._bar.stop()

    def show(self, tally: Tally) -> None:
        """Redraw the bar."""
        text = progress_text(tally, time.monotonic() - self._started)
        self._bar.update(self._task, completed=tally.done, description=text, refresh=True)

    def say(self, text: str) -> None:
        """Print it above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)


@contextmanager
def open_display(stream: TextIO, total: int) -> Iterator[Display]:
    """The display that suits the stream."""
    if stream.isatty():
        try:
            rich = RichDisplay(stream, total)
        except ImportError:  # The extra "progress" is not installed.
            pass
        else:
            with rich:
                yield rich
            return
    yield PlainDisplay(stream)


def progress_text(tally: Tally, seconds: float) -> str:
    """The tally in one line."""
    rate = tally.done / seconds if seconds > 0 else 0.0
    return (
        f"{tally.done}/{tally.total} episodes, {rate:.1f} episodes/s, "
        f"{tally.failed} failed, {tally.exceptions} exceptions, {format_bytes(tally.received_bytes)} received"
    )

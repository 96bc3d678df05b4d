"""The pool, live: a table on a terminal, else plain lines, or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import grpc
from google.protobuf.json_format import MessageToDict

from env_client.channels import open_sync_channel
from env_client.errors import EnvError, ResourceExhaustedError, UnavailableError
from env_client.pool import COLUMNS, headline, printable, rows, totals, watch
from env_client.statuses import env_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envtrio.v1.pool_service_pb2 import WatchPoolResponse

_RETRY_SECONDS = 1.0
_WAKE_SECONDS = 0.2


class TopDisplay(Protocol):
    """Shows views of a pool."""

    def show(self, view: WatchPoolResponse) -> None:
        """Show the newest view."""

    def say(self, text: str) -> None:
        """Show why there is none now."""


class JsonTop:
    """One JSON object a line, as protobuf's own JSON has it: 64-bit numbers are strings there."""

    def __init__(self, out: TextIO, report: TextIO) -> None:
        self._out = out
        self._report = report

    def show(self, view: WatchPoolResponse) -> None:
        """As in TopDisplay."""
        fields = MessageToDict(
            view, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        print(json.dumps(fields), file=self._out, flush=True)

    def say(self, text: str) -> None:
        """As in TopDisplay."""
        print(f"env-client: {text}", file=self._report, flush=True)


class PlainTop:
    """Some lines for each view."""

    def __init__(self, out: TextIO, report: TextIO, title: str) -> None:
        self._out = out
        self._report = report
        self._title = title
        self._shown = False

    def show(self, view: WatchPoolResponse) -> None:
        """As in TopDisplay."""
        between = "\n" if self._shown else ""
        self._shown = True
        print(between + "\n".join(table_lines(view, self._title)), file=self._out, flush=True)

    def say(self, text: str) -> None:
        """As in TopDisplay."""
        print(f"env-client: {text}", file=self._report, flush=True)


class RichTop:
    """A table that is redrawn in place."""

    def __init__(self, out: TextIO, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._live = Live(console=Console(file=out), auto_refresh=False)

    def __enter__(self) -> RichTop:
        self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._live.stop()

    def show(self, view: WatchPoolResponse) -> None:
        """As in TopDisplay."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table, listed = Table(box=None, pad_edge=False), rows(view)
        for column in COLUMNS:
            table.add_column(column, no_wrap=column != COLUMNS[-1])
        for row in listed:
            table.add_row(*map(Text, row.cells))
        # Text, or what a worker printed would be read as markup.
        head = (Text(f"{self._title}  {headline(view)}"), Text(totals(view)))
        details = (Text(f"{row.name}: {row.detail}") for row in listed if row.detail)
        self._live.update(Group(*head, table, *details), refresh=True)

    def say(self, text: str) -> None:
        """As in TopDisplay."""
        from rich.text import Text

        self._live.update(Text(f"{self._title}  {text}"), refresh=True)


def table_lines(view: WatchPoolResponse, title: str) -> list[str]:
    """A view as lines of text; what is to be said of a worker follows its own line."""
    listed = rows(view)
    table = [COLUMNS, *(row.cells for row in listed)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(COLUMNS))]
    lines = [f"{title}  {headline(view)}", totals(view)]
    for cells, detail in zip(table, ["", *(row.detail for row in listed)], strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        if detail:
            lines.append(f"    {detail}")
    return lines


@contextmanager
def open_top(title: str, *, as_json: bool, live: bool) -> Iterator[TopDisplay]:
    """The display that suits standard output."""
    if as_json:
        yield JsonTop(sys.stdout, sys.stderr)
        return
    if live and sys.stdout.isatty():
        try:
            rich = RichTop(sys.stdout, title)
        except ImportError:  # The extra "progress" is not installed.
            pass
        else:
            with rich:
                yield rich
            return
    yield PlainTop(sys.stdout, sys.stderr, title)


class PoolWatch:
    """Shows views, over lost connections too.

    Args:
        target: "HOST:PORT".
        interval_seconds: least time between two views.
        once: show one.
        pause: in place of waiting for so many seconds.
    """

    def __init__(
        self,
        target: str,
        display: TopDisplay,
        *,
        interval_seconds: float,
        once: bool = False,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._target = target
        self._display = display
        self._interval_millis = round(interval_seconds * 1000)
        self._once = once
        self._stopped = threading.Event()
        self._pause = pause or self._stopped.wait
        self._starting = threading.Lock()
        self._call: Any = None

    def run_until_interrupt(self) -> None:
        """As `run`, in a thread, until a KeyboardInterrupt: in the middle of a gRPC call it would break that.

        Raises:
            EnvError: as `run` does.
        """
        with ThreadPoolExecutor(1) as threads, contextlib.suppress(KeyboardInterrupt):
            try:
                watching = threads.submit(self.run)
                # The kernel may give a signal to another thread, which wakes nobody: as one that came while
                # the process was stopped. Whoever wakes now and then hears of it.
                while not wait((watching,), _WAKE_SECONDS).done:
                    pass
                watching.result()
            finally:
                self.stop()

    def run(self) -> None:
        """Show views until `stop`.

        Raises:
            EnvError: there is no view at that address, or with `once` none now.
        """
        with open_sync_channel(self._target, None) as channel:
            while self._start(channel):
                lost = self._read()
                if lost is None or self._stopped.is_set():
                    return
                if self._once or not isinstance(lost, UnavailableError | ResourceExhaustedError):
                    raise lost
                self._display.say(printable(f"no view of {self._target}, trying again: {lost}"))
                self._pause(lost.retry_after or _RETRY_SECONDS)

    def stop(self) -> None:
        """End `run`, from any thread."""
        with self._starting:
            self._stopped.set()
            if self._call is not None:
                self._call.cancel()

    def _start(self, channel: grpc.Channel) -> bool:
        with self._starting:
            if self._stopped.is_set():
                return False
            self._call = watch(channel, self._interval_millis)
            return True

    def _read(self) -> EnvError | None:
        """Show what comes; how it ended. None: one view was enough."""
        try:
            for view in self._call:
                self._display.show(view)
                if self._once:
                    return None
        except grpc.RpcError as error:
            return _lost(self._target, error)
        finally:
            self._call.cancel()
        return UnavailableError(f"{self._target} ended the view")


def _lost(target: str, error: grpc.RpcError) -> EnvError:
    lost = env_error(error)
    if lost.code != "UNIMPLEMENTED":
        return lost
    return EnvError(
        f"{target} has no view of a pool ({lost}): it is a lone worker, or an older broker; `env-client "
        "describe` says what it serves",
        code=lost.code,
        reason=lost.reason,
    )

"""Whoever reads the standard error of a broker or a worker, or does not, holds up neither."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from env_broker import log_stream
from env_worker import log_stream as worker_log_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 10.0
LINE = "x" * 999 + "\n"


class Pipe:
    """A pipe that is read when the test says so."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()

    def read(self, enough: Callable[[str], bool]) -> str:
        """All that comes, until it is enough."""
        said = b""
        while not enough(said.decode()):
            assert select.select([self.source], [], [], SECONDS)[0], said[-200:]
            said += os.read(self.source, 65_536)
        return said.decode()

    def close(self) -> None:
        for fd in (self.source, self.sink):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture(params=[log_stream, worker_log_stream], ids=["broker", "worker"])
def stream_of(request: pytest.FixtureRequest) -> Any:
    return request.param.LogStream


def test_both_are_the_same() -> None:
    ours, theirs = (inspect.getsource(module) for module in (log_stream, worker_log_stream))
    assert ours == theirs


def test_what_can_be_written_is_written_before_the_call_returns(stream_of: Any, pipe: Pipe) -> None:
    stream = stream_of(pipe.sink)
    stream.write("last words\n")
    assert os.read(pipe.source, 100) == b"last words\n"
    stream.close(SECONDS)


def test_a_reader_that_pauses_holds_up_nobody_and_finds_all_of_it(stream_of: Any, pipe: Pipe) -> None:
    stream = stream_of(pipe.sink)
    for number in range(1_000):  # a pipe holds 64 KiB
        stream.write(f"{number} {LINE}")
    said = pipe.read(lambda said: said.count("\n") == 1_000)
    assert [int(line.split()[0]) for line in said.splitlines()] == list(range(1_000))
    stream.close(SECONDS)


def test_beyond_the_limit_lines_are_dropped_and_counted(stream_of: Any, pipe: Pipe) -> None:
    stream = stream_of(pipe.sink, limit=100_000)
    for number in range(1_000):
        stream.write(f"{number} {LINE}")
    said = pipe.read(lambda said: said.endswith("nobody read it\n"))
    *lines, last = said.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert 100_000 - len(LINE) < len(said.encode()) < 100_000 + 2 * 64 * 1024
    assert last == f"{1_000 - len(lines)} lines of the log were dropped, as nobody read it"
    stream.write("next\n")
    assert pipe.read(lambda said: said.endswith("next\n")) == "next\n"
    stream.close(SECONDS)


def test_the_end_waits_for_a_reader_but_not_for_ever(stream_of: Any, pipe: Pipe) -> None:
    stream = stream_of(pipe.sink)
    for _ in range(100):
        stream.write(LINE)
    stream.close(0.05)
    stream.write("too late\n")
    said = pipe.read(lambda said: said.count("\n") == 100)
    assert "too late" not in said


@pytest.mark.parametrize("how", ["reader", "descriptor", "none"])
def test_a_stream_that_broke_is_not_heard_of(
    how: str, stream_of: Any, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "none":
        monkeypatch.setattr(sys, "stderr", None)
        stream = stream_of.of_stderr()
    else:
        stream = stream_of(pipe.sink)
        os.close(pipe.source if how == "reader" else pipe.sink)
    for _ in range(100):
        stream.write(LINE * 10)
    stream.close(SECONDS)
    assert not stream._thread.is_alive()
    assert not stream.isatty()


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(stream_of: Any, pipe: Pipe) -> None:
    os.set_blocking(pipe.sink, False)
    stream = stream_of(pipe.sink)
    for _ in range(1_000):
        stream.write(LINE)
    assert pipe.read(lambda said: said.count("\n") == 1_000).count("\n") == 1_000
    stream.close(SECONDS)


def test_of_standard_error(stream_of: Any, capfd: pytest.CaptureFixture[str]) -> None:
    stream = stream_of.of_stderr()
    print("ä", "\ud800", file=stream, flush=True)
    stream.close(SECONDS)
    assert stream.fileno() not in (2, -1)
    os.close(stream.fileno())
    assert capfd.readouterr().err == "ä \\ud800\n"


def test_a_forked_child_writes_by_itself(stream_of: Any, pipe: Pipe) -> None:
    stream = stream_of(pipe.sink)
    held = threading.Event()

    def hold() -> None:
        with stream._changed:
            held.set()
            release.wait(SECONDS)

    release = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SECONDS)
    if (child := os.fork()) == 0:  # with a lock that nobody holds there, and no thread
        stream.write("from the child\n")
        stream.close(SECONDS)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    release.set()
    holder.join()
    assert os.read(pipe.source, 100) == b"from the child\n"
    stream.close(SECONDS)

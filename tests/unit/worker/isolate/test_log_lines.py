"""What a process prints comes to the log in lines, and not without end."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from env_worker.isolate.log_lines import MAX_LINE_BYTES, MAX_LINES, LogLines


async def logged(caplog: pytest.LogCaptureFixture, *writes: bytes) -> list[str]:
    """What is logged of these writes."""
    caplog.set_level(logging.INFO)
    reading, writing = os.pipe()
    lines = LogLines(reading, "0123abcd")
    for data in writes:
        await asyncio.to_thread(os.write, writing, data)
    os.close(writing)
    await lines.close(5.0)
    assert all(text.startswith("run=0123abcd ") for text in caplog.messages)
    texts = [text.removeprefix("run=0123abcd ") for text in caplog.messages]
    assert (
        list(lines.tail) == [text for text in texts if "not logged" not in text][-10:]
        or len(texts) > MAX_LINES
    )
    return texts


async def test_lines_are_lines_however_they_are_written(caplog: pytest.LogCaptureFixture) -> None:
    assert await logged(caplog, b"one\ntw", b"o\n\nthr", b"ee") == ["one", "two", "", "three"]


async def test_what_is_no_text_cannot_forge_lines(caplog: pytest.LogCaptureFixture) -> None:
    assert await logged(caplog, b"a\x00\x1b[31m\r\xffb\n") == ["a  [31m \ufffdb"]


async def test_what_it_logs_keeps_its_level(caplog: pytest.LogCaptureFixture) -> None:
    await logged(caplog, b"level=ERROR module=mine no\nlevel=LOUD module=mine yes\nprinted\n")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "INFO"]


async def test_a_long_line_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    pieces = [b"x" * 50_000] * 3
    assert await logged(caplog, *pieces, b"\nnext\n") == ["x" * MAX_LINE_BYTES + "...", "next"]


async def test_too_many_lines_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    texts = await logged(caplog, *[b"line\n" * 100] * 20)
    assert len(texts) == MAX_LINES + 1
    assert texts[-1] == f"printed {MAX_LINES} lines; what follows is not logged"


async def test_a_pipe_that_stays_open_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    lines = LogLines(reading, "0123abcd")
    await lines.close(0.0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(reading)
    os.close(writing)

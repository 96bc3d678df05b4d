"""Histories keep their order across processes, and gates hold up whoever waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.helpers.gate import Gate, pass_blocking, pass_gate
from tests.helpers.history import Asked, Ended, History, KeepBegan, Passed, from_line, to_line
from tests.helpers.history_pipe import HistoryPipe, HistoryWriter
from tests.helpers.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path


def test_every_record_survives_its_line() -> None:
    history = History()
    history.note(Asked, "r")
    history.note(Passed, "r", hop="client", data=b"\x00\xff")
    history.note(KeepBegan, "r", episode_id="e", array_bytes=7)
    assert [from_line(to_line(record)) for record in history] == list(history)


def test_order_and_selection() -> None:
    history = History([Ended(3, "r", "OK"), Asked(1, "r"), Asked(2, "s")])
    assert [record.seq for record in history] == [1, 2, 3]
    assert history.runs() == ["r", "s"]
    assert len(history.only(["s"])) == 1
    assert history.of("r", Ended) == [Ended(3, "r", "OK")]
    first, second = history.note(Asked, "t"), history.note(Asked, "t")
    assert first.seq < second.seq


async def test_a_hook_reports_through_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Snapshot.take()
    pipe = HistoryPipe(tmp_path / "history")
    for name, value in pipe.variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TimeoutError, match="no KeepBegan within"):
        await pipe.seen("r", KeepBegan, timeout=0.01)
    writer = HistoryWriter()
    waiting = asyncio.create_task(pipe.seen("r", KeepBegan))
    await asyncio.to_thread(writer.note, Asked, "r")
    await asyncio.to_thread(writer.note, KeepBegan, "r", episode_id="e")
    assert (await waiting).run == "r"
    pipe.close()
    writer.close()
    assert Snapshot.take().files == before.files


async def test_gates(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    task = asyncio.create_task(pass_gate(str(gate.path)))
    thread = asyncio.create_task(asyncio.to_thread(pass_blocking, str(gate.path)))
    cancelled = asyncio.create_task(pass_gate(str(gate.path)))
    await asyncio.sleep(0)
    assert not task.done()
    cancelled.cancel()
    gate.open(2)
    await asyncio.gather(task, thread)
    gate.close()
    assert cancelled.cancelled()

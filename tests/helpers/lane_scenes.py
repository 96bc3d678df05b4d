"""Runs that a broker sends to a scripted worker, by its lane or each by a call of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.helpers.raw_client import message
from tests.helpers.scripted_worker import Hang, ScriptedWorker, Send
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from tests.helpers.raw_client import RawClient


async def started(client: RawClient, worker: ScriptedWorker, count: int = 3) -> list[Any]:
    """So many runs that have sent their first message, and hang."""
    runs = [new_id() for _ in range(count)]
    for run in runs:
        worker.script(run, Send(message("a")), Hang())
    calls = [client.start(run) for run in runs]
    for call in calls:
        assert await call.read() == message("a")
    return calls


async def ends(client: RawClient, calls: list[Any]) -> set[tuple[str, str]]:
    return {(await client.read_all(call))[1:] for call in calls}


async def by_run(worker: ScriptedWorker, client: RawClient, streams: int, **fields: Any) -> None:
    """A run that goes by a call of its own; so many streams were opened since the worker began."""
    run = new_id()
    carried = sum(len(stream.numbers) for stream in worker.sessions.streams)
    worker.script(run, Send(message("a")))
    assert await client.run(run, **fields) == ([message("a")], "OK", "")
    assert sum(len(stream.numbers) for stream in worker.sessions.streams) == carried
    assert len(worker.sessions.opens) == streams


async def by_the_lane(worker: ScriptedWorker, client: RawClient, streams: int) -> None:
    """A run that goes by the lane, which is the worker's stream of that number."""
    run = new_id()
    worker.script(run, Send(message("a")))
    assert await client.run(run) == ([message("a")], "OK", "")
    assert len(worker.sessions.opens) == streams
    assert worker.sessions.streams[-1].numbers

"""Frames of runs in a session, for streams that a test plays by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.stub_client import GENERATION, MIB, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.helpers.session_stream import SessionStream

SHORT = {"script": [["trace"], ["say", 3]]}


def opening(number: int, task: Any = SHORT, **fields: Any) -> dict[str, Any]:
    """A frame that opens a run of a scripted environment."""
    request = pb.RunRequest(
        request_id=new_id(),
        protocol_generation=GENERATION,
        environment="scripted",
        task_json=json.dumps(task),
    )
    fields = {"run_number": number, "request": request, "credit_bytes": MIB, **fields}
    return {"open_run": pb.OpenRun(**fields)}


async def frames(stream: SessionStream) -> AsyncIterator[pb.SessionResponse]:
    """All that comes, frame by frame."""
    while (message := await stream.read()) is not None:
        yield message
        for frame in message.more:
            yield frame


async def ends(stream: SessionStream, count: int) -> list[pb.EndRun]:
    """The next so many ends of runs."""
    found: list[pb.EndRun] = []
    async for frame in frames(stream):
        if frame.HasField("end_run"):
            found.append(frame.end_run)
        if len(found) == count:
            break
    return found

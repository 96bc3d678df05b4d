"""What a client says in a stream is taken in turns, whatever it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import env_service_pb2 as pb

from env_broker.client_reader import ClientReader
from env_broker.client_stream import ClientStream
from env_broker.route import ConfirmOutcome
from env_broker.sessions import SessionTable

if TYPE_CHECKING:
    from env_broker.session_frames import Frame

IDS = [f"{number:032x}" for number in range(1_024)]
FRAMES = 20


class Answers:
    """Answers each confirmation at once, and the answer is told at once."""

    def __init__(self) -> None:
        self.confirmed = 0

    def confirm(self, request_id: str, stream: ClientStream) -> None:
        self.confirmed += 1
        stream.answered(request_id, ConfirmOutcome.UNKNOWN)
        stream.outbox.message()
        stream.outbox.written()


@pytest.mark.parametrize("ids", [1_024, 100])
async def test_confirmations_that_come_again_and_again_hold_nobody_up(ids: int) -> None:
    """Others have their turn after about as many as one frame may have."""
    answers: Any = Answers()
    nobody: Any = None
    table = SessionTable(grace=3.0)
    reader = ClientReader(ClientStream("a" * 32, 1), nobody, table=table, confirmer=answers, clock=nobody)

    class Context:
        async def read(self) -> None:
            return None

    context: Any = Context()
    frames: list[Frame] = [pb.SessionRequest(confirm=pb.Confirm(request_ids=IDS[:ids]))] * FRAMES
    reading = asyncio.create_task(reader.read_on(context, frames))
    most = seen = 0
    while not reading.done():
        await asyncio.sleep(0)
        most, seen = max(most, answers.confirmed - seen), answers.confirmed
    assert "half-closed" in str(reading.exception())
    assert (seen, most <= 1_024) == (FRAMES * ids, True)

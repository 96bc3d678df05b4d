"""A session's outbox with runs whose ports a test plays, without a network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from envtrio.v1 import env_service_pb2 as pb
from envtrio.v1 import errors_pb2

from env_worker.session_frames import run_ended
from env_worker.session_outbox import Outbox
from env_worker.session_run import SessionRun
from env_worker.status import Refusal

if TYPE_CHECKING:
    from env_worker.port import RunPort

CANCELLED = Refusal(errors_pb2.ERROR_REASON_CANCEL_REQUESTED, "a test took it back")


def frames_in(message: bytes | None) -> list[tuple[Any, ...]]:
    """(kind, run_number, data or code) for each frame; for answers (kind, how many)."""
    if message is None:
        return []
    response = pb.SessionResponse.FromString(message)
    found: list[tuple[Any, ...]] = []
    for frame in (response, *response.more):
        assert frame is response or not frame.more
        match frame.WhichOneof("frame"):
            case "run_data":
                found.append(("data", frame.run_data.run_number, frame.run_data.data))
            case "run_admitted":
                found.append(("admitted", frame.run_admitted.run_number))
            case "end_run":
                found.append(("end", frame.end_run.run_number, frame.end_run.code))
            case "confirm_answers":
                found.append(("answers", len(frame.confirm_answers.answers)))
            case other:
                raise AssertionError(other)
    return found


def answers(count: int) -> bytes:
    one = pb.ConfirmAnswer(request_id="0" * 32)
    return pb.SessionResponse(confirm_answers=pb.ConfirmAnswers(answers=[one] * count)).SerializeToString()


class Bench:
    """An outbox, its runs, and the tasks that play them."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.outbox.joins = True
        self.due = 0
        self.outbox.on_due = self._note_due
        self.ends: dict[int, Refusal | None] = {}
        self.ports: dict[int, RunPort[Refusal]] = {}
        self.committed: set[int] = set()

    def _note_due(self) -> None:
        self.due += 1

    def run(self, number: int, credit: int = 2**40) -> SessionRun:
        run = SessionRun(number, credit, self.outbox, self._over)
        assert run.port is not None
        self.ports[number] = run.port
        return run

    def _over(self, run: SessionRun, ending: Refusal | None) -> None:
        assert run.number not in self.ends
        self.ends[run.number] = ending
        self.outbox.put(run_ended(run.number, ending))

    async def send(self, number: int, data: bytes) -> asyncio.Task[None]:
        task = asyncio.create_task(self.ports[number].send(data))
        await asyncio.sleep(0)
        return task

    async def reply(self, number: int, data: bytes) -> asyncio.Task[None]:
        def commit() -> bool:
            self.committed.add(number)
            return True

        task = asyncio.create_task(self.ports[number].send_reply(data, commit))
        await asyncio.sleep(0)
        return task

    def message(self) -> list[tuple[Any, ...]]:
        return frames_in(self.outbox.next_message())

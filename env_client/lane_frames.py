"""What a lane writes and reads, as messages: what is due to be sent, and what came. No I/O, no clock."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from envtrio.v1.env_service_pb2 import (
    ConfirmAnswers,
    RunAdmitted,
    SessionOpened,
    SessionRequest,
    SessionResponse,
)

from env_client.confirmations import MAX_BATCH

if TYPE_CHECKING:
    from envtrio.v1.env_service_pb2 import RunRequest

INITIAL_CREDIT: Final = 256 * 1024
"""Bytes of one run that a server may send before its reader has taken any."""

_MESSAGE_BYTES: Final = 256 * 1024  # About: what comes next may have to wait for a message to be sent.
_MESSAGE_FRAMES: Final = 1 + 1_024  # The first, and what the contract allows in `more`.
_SMALL_FRAME_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run ended.

    Attributes:
        code: number of a gRPC status code.
        message: the status message.
        details: a serialized google.rpc.Status; empty where there is none.
    """

    code: int
    message: str = ""
    details: bytes = b""


Frame: TypeAlias = tuple[int, "RunAdmitted | bytes | RunStatus | SessionOpened | ConfirmAnswers"]
"""The number of a run with its admission, a piece of its stream or its end; or 0 with what is not of one."""


def decoded(message: bytes) -> list[Frame]:
    """The frames of a serialized SessionResponse, in order; those that mean nothing to a lane are left out.

    Raises:
        google.protobuf.message.DecodeError: it is none.
    """
    response = SessionResponse.FromString(message)
    frames: list[Frame] = []
    for frame in (response, *response.more):
        kind = frame.WhichOneof("frame")
        if kind == "run_data":
            piece = frame.run_data
            frames.append((piece.run_number, piece.data))
        elif kind == "run_admitted":
            frames.append((frame.run_admitted.run_number, frame.run_admitted))
        elif kind == "end_run":
            end = frame.end_run
            frames.append((end.run_number, RunStatus(end.code, end.message, end.status_details)))
        elif kind == "confirm_answers":
            frames.append((0, frame.confirm_answers))
        elif kind == "opened":
            frames.append((0, frame.opened))
    return frames


@dataclass(frozen=True, slots=True)
class Opening:
    """A run that the server does not know yet.

    Attributes:
        request: what to run.
        size: its serialized bytes.
        deadline: when it must have ended, in seconds of the lane's clock; None: no limit.
    """

    request: RunRequest
    size: int
    deadline: float | None

    def seconds_left(self, now: float) -> float | None:
        """How long it may still take; None: no limit."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


class Reading(Protocol):
    """A run that is read."""

    def claim(self) -> int:
        """Bytes that were read since the last time: so many more may come."""


class Outbox:
    """What is due to be sent: confirmations, then the rest in the order in which it became due, at most one
    frame a run.

    So however long a server does not read, no more waits than there are runs that it was or is to be told of.
    """

    def __init__(self) -> None:
        # An opening, a run that has credit to give, or None: it is left.
        self._due: dict[int, Opening | Reading | None] = {}
        # Whether any of it is worth a message of its own.
        self._is_pressing = False
        # A set that keeps its order: only the keys count.
        self._confirms: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._due) + len(self._confirms)

    def confirm(self, request_id: str) -> None:
        """Confirm an episode. Its run is over, so this too is one frame a run."""
        self._confirms[request_id] = None

    def withdraw(self, request_id: str) -> None:
        """Nobody wants that confirmation any more: it is not sent, unless it has left."""
        self._confirms.pop(request_id, None)

    def open(self, number: int, opening: Opening) -> None:
        """Tell the server of a run; `number` is more than any before."""
        self._due[number] = opening
        self._is_pressing = True

    def credit(self, number: int, run: Reading, *, pressing: bool) -> None:
        """Allow the server what `run` claims then, of a run that was not left.

        Args:
            pressing: it leaves at once; else with whatever else leaves.
        """
        self._due.setdefault(number, run)
        self._is_pressing |= pressing

    def leave(self, number: int) -> None:
        """Give up a run. One that the server was not told of it is not told of at all."""
        if isinstance(self._due.get(number), Opening):
            del self._due[number]
        else:
            self._due[number] = None
            self._is_pressing = True

    def forget(self, number: int) -> None:
        """Nothing is to be said of a run any more."""
        self._due.pop(number, None)

    def take_openings(self) -> dict[int, Opening]:
        """The runs that the server was not told of, by number. They are due no more."""
        openings = {number: due for number, due in self._due.items() if isinstance(due, Opening)}
        for number in openings:
            del self._due[number]
        return openings

    def next_message(self, now: float) -> SessionRequest | None:
        """What leaves together; None when nothing has to. `now` is the lane's clock, in seconds."""
        if not (self._is_pressing or self._confirms):
            return None
        message = self._confirmations() if self._confirms else None
        taken: list[int] = []
        size = message.ByteSize() if message is not None else 0
        room = _MESSAGE_FRAMES - (message is not None)
        for number, due in self._due.items():
            size += due.size if isinstance(due, Opening) else _SMALL_FRAME_BYTES
            if message is None:
                frame = message = SessionRequest()
            elif size > _MESSAGE_BYTES or len(taken) >= room:
                break
            else:
                frame = message.more.add()
            _fill(frame, number, due, now)
            taken.append(number)
        for number in taken:
            del self._due[number]
        self._is_pressing = bool(self._due)
        return message

    def _confirmations(self) -> SessionRequest:
        batch = list(itertools.islice(self._confirms, MAX_BATCH))
        for request_id in batch:
            del self._confirms[request_id]
        message = SessionRequest()
        message.confirm.request_ids.extend(batch)
        return message


def _fill(frame: SessionRequest, number: int, due: Opening | Reading | None, now: float) -> None:
    if isinstance(due, Opening):
        frame.open_run.run_number = number
        frame.open_run.request.CopyFrom(due.request)
        frame.open_run.credit_bytes = INITIAL_CREDIT
        left = due.seconds_left(now)
        if left is not None:
            frame.open_run.timeout_millis = math.ceil(left * 1000)
    elif due is None:
        frame.leave_run.run_number = number
    else:
        frame.run_credit.run_number = number
        frame.run_credit.credit_bytes = due.claim()

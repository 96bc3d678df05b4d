"""The scripted server's side of the lane of an `EnvClient`: a Session stream that carries runs.

A run plays the same script that a Run would.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import grpc
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.scripted_end import End

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Play: TypeAlias = Callable[[pb.RunRequest, Any], Iterator[bytes]]

_PATIENCE_SECONDS: Final = 20.0
_MOST_FRAMES: Final = 1_000
_NOTHING: Final = object()


def is_lane(context: Any) -> bool:
    """Whether a stream comes from an event loop, as a lane's do and a session's do not."""
    return "asyncio" in dict(context.invocation_metadata()).get("user-agent", "")


@dataclass(frozen=True)
class LaneLine:
    """What one stream gets.

    Attributes:
        refuse: ends it in place of the first answer.
        opens: `opened` waits for it.
        capabilities: what it is opened with.
        parts: with the goodbye the stream ends; else it stays open.
    """

    refuse: End | None = None
    opens: threading.Event | None = None
    capabilities: tuple[str, ...] = ("sessions", "session-runs")
    parts: bool = True


class ScriptedLanes:
    """Handles the streams of lanes. A stream takes the next of `lines`, and `usual` when there is none.

    Attributes:
        lines: what the next streams get.
        opens: session_id and epoch of each stream, in order.
        streams: those that were opened, in order.
        ends: "goodbye" or "lost" for each stream that was opened and is over.
        confirmed: the runs that were confirmed, in order.
        outcome: what each confirmation is answered with; None: nothing. UNKNOWN at first, so that a client
            asks in its session.
    """

    def __init__(self, play: Play, *, usual: LaneLine) -> None:
        self.lines: deque[LaneLine] = deque()
        self.opens: list[tuple[str, int]] = []
        self.streams: list[ScriptedLane] = []
        self.ends: list[str] = []
        self.confirmed: list[str] = []
        self.outcome: pb.ConfirmOutcome.ValueType | None = pb.CONFIRM_OUTCOME_UNKNOWN
        self._play = play
        self._usual = usual
        self._changed = threading.Condition()
        self._over = threading.Event()

    def wait_until(self, condition: Callable[[ScriptedLanes], bool]) -> None:
        """Wait until what came meets the condition."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), _PATIENCE_SECONDS):
                frames = [lane.frames for lane in self.streams]
                raise AssertionError(f"opens {self.opens}, frames {frames}, ends {self.ends}")

    def let_go(self) -> None:
        """End what still waits."""
        self._over.set()

    def note(self, records: list[Any], record: object) -> None:
        """Add a record, and tell who waits."""
        with self._changed:
            records.append(record)
            self._changed.notify_all()

    def session(
        self, requests: Iterator[pb.SessionRequest], context: Any
    ) -> Iterator[pb.SessionResponse | bytes]:
        """Handler of Session."""
        opening = next(requests).open
        with self._changed:
            line = self.lines.popleft() if self.lines else self._usual
        self.note(self.opens, (opening.session_id, opening.epoch))
        if line.refuse is not None:
            line.refuse.abort(context)
        if line.opens is not None:
            line.opens.wait(_PATIENCE_SECONDS)
        yield pb.SessionResponse(opened=pb.SessionOpened(capabilities=line.capabilities))
        lane = ScriptedLane(self, self._play, requests)
        self.note(self.streams, lane)
        try:
            yield from lane.messages(context)
            if not line.parts:
                self._over.wait(_PATIENCE_SECONDS)
        finally:
            lane.close()
            self.note(self.ends, "goodbye" if lane.said_goodbye else "lost")


class ScriptedLane:
    """One stream.

    Attributes:
        frames: of each frame that came behind the first its kind, its run_number, and its credit or 0.
        batches: how many frames each message had.
        said_goodbye: whether the goodbye came.
    """

    def __init__(self, lanes: ScriptedLanes, play: Play, requests: Iterator[pb.SessionRequest]) -> None:
        self.frames: list[tuple[str, int, int]] = []
        self.batches: list[int] = []
        self.said_goodbye = False
        self._lanes = lanes
        self._play = play
        self._requests = requests
        self._out: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._runs: dict[int, LaneContext] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)

    def send(self, **frame: Any) -> None:
        """Send a frame."""
        self._out.put(pb.SessionResponse(**frame))

    def send_raw(self, message: bytes) -> None:
        """Send a message, as it is."""
        self._out.put(message)

    def end(self, end: End | None) -> None:
        """End the stream with a status; None: OK."""
        self._out.put(end)

    def messages(self, context: Any) -> Iterator[pb.SessionResponse | bytes]:
        """What is sent, until the stream ends; what is there together is sent together. Runs come from now
        on: a stream is listed before one does."""
        self._reader.start()
        item = self._out.get()
        while isinstance(item, pb.SessionResponse | bytes):
            message, item = item, self._next_now()
            if isinstance(message, pb.SessionResponse):
                carried = {message.run_data.run_number}
                while isinstance(item, pb.SessionResponse) and len(message.more) < _MOST_FRAMES:
                    # The end comes in a later message than the reply.
                    if item.HasField("end_run") and item.end_run.run_number in carried:
                        break
                    carried.add(item.run_data.run_number)
                    message.more.append(item)
                    item = self._next_now()
            yield message
            if item is _NOTHING:
                item = self._out.get()
        if isinstance(item, End):
            item.abort(context)

    def _next_now(self) -> Any:
        try:
            return self._out.get_nowait()
        except queue.Empty:
            return _NOTHING

    def close(self) -> None:
        """It is over."""
        for run in tuple(self._runs.values()):
            run.leave()

    def _read(self) -> None:
        try:
            for request in self._requests:
                self._lanes.note(self.batches, 1 + len(request.more))
                for frame in (request, *request.more):
                    self._take(frame)
        except Exception:  # The stream is over: what grpc raises here tells nothing.
            self.end(None)
        else:
            self.end(None)

    def _take(self, frame: pb.SessionRequest) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "open_run":
            opening = frame.open_run
            run = self._runs[opening.run_number] = LaneContext(self, opening)
            self._note(kind, opening.run_number, opening.credit_bytes)  # before the run can be seen
            threading.Thread(target=self._carry, args=(opening, run), daemon=True).start()
        elif kind == "run_credit":
            number = frame.run_credit.run_number
            if number in self._runs:
                self._runs[number].allow(frame.run_credit.credit_bytes)
            self._note(kind, number, frame.run_credit.credit_bytes)
        elif kind == "leave_run":
            if frame.leave_run.run_number in self._runs:
                self._runs[frame.leave_run.run_number].leave()
            self._note(kind, frame.leave_run.run_number, 0)
        elif kind == "confirm":
            self._confirm(frame.confirm.request_ids)
        elif kind == "goodbye":
            self.said_goodbye = True
            self._note(kind, 0, 0)
            self.end(None)
        else:
            self._note(str(kind), 0, 0)

    def _confirm(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if (outcome := self._lanes.outcome) is not None:
                answer = pb.ConfirmAnswer(request_id=request_id, outcome=outcome)
                self.send(confirm_answers=pb.ConfirmAnswers(answers=[answer]))
            self._lanes.note(self._lanes.confirmed, request_id)

    def _note(self, kind: str, number: int, credit: int) -> None:
        self._lanes.note(self.frames, (kind, number, credit))

    def _carry(self, opening: pb.OpenRun, run: LaneContext) -> None:
        end = pb.EndRun(run_number=opening.run_number)
        script = self._play(opening.request, run)
        try:
            for data in script:
                if not run.may_send(len(data)):
                    break
                self.send(run_data=pb.RunData(run_number=opening.run_number, data=data))
        except _Aborted as aborted:
            end.code, end.message, end.status_details = aborted.code, aborted.message, aborted.details
        else:
            if run.is_left:
                end.code, end.message = grpc.StatusCode.CANCELLED.value[0], "left"
        del self._runs[opening.run_number]
        self.send(end_run=end)


class _Aborted(Exception):
    def __init__(self, code: int, message: str, details: bytes) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details


class LaneContext:
    """What a handler of Run has of its call."""

    def __init__(self, lane: ScriptedLane, opening: pb.OpenRun) -> None:
        self.is_left = False
        self._lane = lane
        self._credit = opening.credit_bytes
        self._changed = threading.Condition()
        self._callbacks: list[Callable[[], object]] = []
        timeout = opening.timeout_millis / 1000 if opening.HasField("timeout_millis") else None
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def time_remaining(self) -> float | None:
        """As of a grpc.ServicerContext, and so are the next three."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def add_callback(self, callback: Callable[[], object]) -> bool:
        with self._changed:
            if not self.is_left:
                self._callbacks.append(callback)
            return not self.is_left

    def abort(self, code: grpc.StatusCode, message: str) -> NoReturn:
        raise _Aborted(code.value[0], message, b"")

    def abort_with_status(self, status: Any) -> NoReturn:
        details = dict(status.trailing_metadata)["grpc-status-details-bin"]
        raise _Aborted(status.code.value[0], status.details, details)

    def allow(self, credit: int) -> None:
        """More may be sent."""
        with self._changed:
            self._credit += credit
            self._changed.notify_all()

    def leave(self) -> None:
        """The caller is gone."""
        with self._changed:
            self.is_left = True
            self._changed.notify_all()
        for callback in self._callbacks:
            callback()

    def may_send(self, size: int) -> bool:
        """Wait for credit, and use it. False: the caller is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit > 0 or self.is_left, _PATIENCE_SECONDS)
            self._credit -= size
            return not self.is_left

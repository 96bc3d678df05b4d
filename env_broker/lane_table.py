"""The runs of one stream to a worker: what is due to be sent, and who gets what has come.

Synchronous, and without gRPC's calls: who holds the stream writes `next_message` and hands in what it reads.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from env_broker import lane_frames
from env_broker.lane_run import Carrier, LaneRun, OverdrawnError

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc
    from envtrio.v1.env_service_pb2 import EndRun, SessionResponse

_MOST_MORE: Final = 1_024
"""Frames that one message may have beside its first: more would hold up the event loop."""
_MOST_STATUS_BYTES: Final = 8 * 1024
"""What gRPC lets pass as the end of a call, and so to a client."""


class LaneFaultError(Exception):
    """The worker sent what makes no sense: the stream cannot be trusted any more."""


class LaneTable(Carrier):
    """Runs by their numbers, and those that have a frame for the worker, in the order in which they had it.

    However little the worker reads, a run has one entry and one frame at a time: its open_run, made when it
    is sent, or what is to be said of it since. A run that nobody wants any more before that leaves nothing.

    Args:
        on_due: called when there is something to send.
    """

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due: Final = on_due
        self._due: Final[OrderedDict[LaneRun, None]] = OrderedDict()
        self._runs: Final[dict[int, LaneRun]] = {}
        self._last = 0
        self._pressing = False
        """Whether any that is due is worth a message of its own."""

    def __len__(self) -> int:
        """Runs that the worker has, as far as is known here."""
        return len(self._runs)

    @property
    def waiting(self) -> int:
        """Frames that are due."""
        return len(self._due)

    def due(self, run: LaneRun, *, pressing: bool = True) -> None:
        """As in Carrier; a run that is new is opened by it."""
        self._due.setdefault(run)
        if pressing:
            self._pressing = True
            self._on_due()

    def leave(self, run: LaneRun) -> None:
        """As in Carrier."""
        if not run.number:
            self._due.pop(run, None)
        elif self._runs.pop(run.number, None) is not None:
            self.due(run)

    def next_message(self) -> bytes:
        """A SessionRequest with what is due, as far as it fits into one; empty if none of it is pressing."""
        frames: list[bytes] = []
        size = 0
        while self._pressing and self._due and len(frames) < lane_frames.MAX_FRAMES:
            run = next(iter(self._due))
            if frames and size + run.weight > lane_frames.MESSAGE_BYTES:
                break
            del self._due[run]
            frames.append(self._frame(run))
            size += len(frames[-1])
        self._pressing = self._pressing and bool(self._due)
        return lane_frames.joined(frames) if frames else b""

    def take(self, message: SessionResponse) -> None:
        """Hand out what came. Of runs that were left or have ended, nothing is wanted.

        Raises:
            LaneFaultError: naming what makes no sense.
        """
        self._take(message)
        more = message.more
        if len(more) > _MOST_MORE:
            raise LaneFaultError(f"a message has {len(more)} further frames, the limit is {_MOST_MORE}")
        for frame in more:
            if frame.more:
                raise LaneFaultError("a further frame has further frames itself")
            self._take(frame)

    def end(self, code: grpc.StatusCode, details: str, *, fall_back: bool) -> None:
        """The stream is over: end the runs that it carried, with this status.

        Args:
            fall_back: whether those that were never sent go by a call of their own; else they end with it.
        """
        unsent = [run for run in self._due if not run.number]
        carried = list(self._runs.values())
        self._due.clear()
        self._runs.clear()
        for run in carried:
            run.broke(code, details)
        for run in unsent:
            if not fall_back:
                run.broke(code, details)
                continue
            try:
                run.fall_back()
            except Exception as error:  # as gRPC raises where the channel was closed; the others wait yet
                run.broke(code, f"{details}; and by Run: {type(error).__name__}: {error}")

    def _frame(self, run: LaneRun) -> bytes:
        """What the worker is to hear of that run."""
        if not run.number:
            self._last += 1
            frame = run.opening(self._last)
            self._runs[run.number] = run
            return frame
        if run.left:
            return lane_frames.leave_run(run.number)
        return lane_frames.run_credit(run.number, run.claim())

    def _take(self, frame: SessionResponse) -> None:
        match frame.WhichOneof("frame"):
            case "run_data":
                data = frame.run_data
                if (run := self._find(data.run_number)) is not None:
                    try:
                        run.receive(data.data)
                    except OverdrawnError as error:
                        raise LaneFaultError(str(error)) from None
            case "run_admitted":
                if (run := self._find(frame.run_admitted.run_number)) is not None:
                    run.admit()
            case "end_run":
                self._end_run(frame.end_run)
            case "opened" | "confirm_answers" as kind:
                raise LaneFaultError(f"{kind} came in a stream that has no use for it")
            # Another kind is a later version's.

    def _end_run(self, end: EndRun) -> None:
        if (run := self._find(end.run_number)) is None:
            return
        if (size := len(end.message) + len(end.status_details)) > _MOST_STATUS_BYTES:
            raise LaneFaultError(
                f"the status of run number {end.run_number} has {size} bytes, the limit is "
                f"{_MOST_STATUS_BYTES}"
            )
        del self._runs[run.number]
        self._due.pop(run, None)
        run.ended(end)

    def _find(self, number: int) -> LaneRun | None:
        """That run; None where nobody wants anything of it any more."""
        run = self._runs.get(number)
        if run is None and not 0 < number <= self._last:
            raise LaneFaultError(f"run number {number} was never opened, the last one is {self._last}")
        return run

"""One stream of a client's session, from the side of what the client says."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from env_broker.route import InvalidRequestIdError
from env_broker.route import key as check_request_id
from env_broker.session_frames import Opening, invalid, read
from env_broker.worker_session import MAX_FRAME_IDS

if TYPE_CHECKING:
    from collections.abc import Collection

    from grpc.aio import ServicerContext

    from env_broker.client_runs import ClientRuns
    from env_broker.client_stream import ClientStream
    from env_broker.clock import Clock
    from env_broker.confirm import Confirmer
    from env_broker.session_frames import Frame
    from env_broker.sessions import SessionTable

log = logging.getLogger(__name__)

_FRAMES_AT_ONCE: Final = 64
"""Frames that are taken before others have their turn: each may begin a run."""
_IDS_A_FRAME: Final = 16
"""Confirmed ids that count as one frame, new ones or not."""


class ClientReader:
    """Does what the frames of one stream ask for.

    Args:
        stream: is read no further while it is full.
        runs: those that it carries.
        table: hears of a goodbye.
    """

    def __init__(
        self,
        stream: ClientStream,
        runs: ClientRuns,
        *,
        table: SessionTable,
        confirmer: Confirmer,
        clock: Clock,
    ) -> None:
        self._stream: Final = stream
        self._runs: Final = runs
        self._table: Final = table
        self._confirmer: Final = confirmer
        self._clock: Final = clock
        self._in_turn = 0
        """Frames that were taken since others had their turn."""

    async def read_on(self, context: ServicerContext[bytes, bytes], frames: list[Frame] | None) -> None:
        """Take `frames`, which came first, and those that follow, until the client ends its side. After a
        goodbye it never returns, as there is more to tell. Refusal (INVALID_REQUEST): a frame that the
        contract does not allow, or an end without a goodbye."""
        while frames is not None:
            for frame in frames:
                if self._stream.full:
                    await self._stream.room()
                await self._take(frame)
                self._in_turn += 1
                if self._in_turn >= _FRAMES_AT_ONCE:
                    self._in_turn = 0
                    await asyncio.sleep(0)
            frames = await read(context)
        if not self._stream.goodbye:
            raise invalid(
                f"{self._stream} was half-closed without goodbye; say it, or come back with the next epoch "
                f"within {self._table.grace:g} s",
                "frame",
            )
        await asyncio.Event().wait()

    async def _take(self, frame: Frame) -> None:
        kind = "open_run" if isinstance(frame, Opening) else frame.WhichOneof("frame")
        if self._stream.goodbye:
            raise invalid(f"{kind} came after goodbye; open the session's next stream", kind)
        if isinstance(frame, Opening):
            self._runs.open(frame)
        elif kind == "run_credit":
            self._runs.credit(frame.run_credit.run_number, frame.run_credit.credit_bytes)
        elif kind == "leave_run":
            self._runs.leave(frame.leave_run.run_number)
        elif kind == "confirm":
            await self._confirm(frame.confirm.request_ids)
        elif kind == "goodbye":
            self._table.goodbye(self._stream.session_id, self._stream.epoch, self._clock.now())
            log.info("%s said goodbye", self._stream)
            self._stream.say_goodbye()
        elif kind == "open":
            raise invalid("open came twice; open the session's next stream", kind)
        else:
            raise invalid("a frame is empty; use the stubs of envtrio.v1", "frame")

    async def _confirm(self, request_ids: Collection[str]) -> None:
        if len(request_ids) > MAX_FRAME_IDS:
            raise invalid(
                f"confirm has {len(request_ids)} request_ids, the limit is {MAX_FRAME_IDS}; send more frames",
                "confirm.request_ids",
                value=len(request_ids),
                limit=MAX_FRAME_IDS,
            )
        self._in_turn += len(request_ids) // _IDS_A_FRAME
        for request_id in request_ids:
            try:
                check_request_id(request_id)
            except InvalidRequestIdError as error:
                raise invalid(f"confirm: {error}", "confirm.request_ids") from None
        for request_id in request_ids:
            await self._stream.room()
            self._stream.pending.add(request_id)
            self._confirmer.confirm(request_id, self._stream)

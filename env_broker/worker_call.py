"""One run at its worker, as the relay sees it: admitted, read to its end, or given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import grpc.aio

    from env_broker.held_request import HeldRequest


class WorkerCall(Protocol):
    """A run that was sent to a worker, by a call of its own or in a stream that carries many.

    Both methods raise grpc.aio.AioRpcError with the status that ended the run, and CancelledError once it was
    cancelled here. One task uses them, one after the other.
    """

    async def admitted(self) -> bool:
        """Return when the worker has admitted the run; False where it ended before that, as `read` tells."""

    async def read(self) -> bytes | None:
        """What came next, one or several messages joined; None when the run ended with OK."""

    def cancel(self) -> None:
        """Give the run up. Synchronous and idempotent; of a run that has ended it means nothing."""


class RunCall(WorkerCall):
    """A run by the Run call."""

    def __init__(self, call: grpc.aio.UnaryStreamCall[HeldRequest, bytes]) -> None:
        self._call: Final = call

    async def admitted(self) -> bool:
        """As in WorkerCall."""
        await self._call.initial_metadata()
        return not self._call.done()  # else it is a refusal without initial metadata

    async def read(self) -> bytes | None:
        """As in WorkerCall."""
        message = await self._call.read()
        return message if isinstance(message, bytes) else None

    def cancel(self) -> None:
        """As in WorkerCall."""
        self._call.cancel()

"""How a streaming call of grpc.aio ended, also where grpc.aio hides it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import Coroutine

_HIDDEN: Final = (grpc.StatusCode.INTERNAL, "Internal error from Core")
_MOMENT_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.005


class CallStatus:
    """Keeps the status that a call got from its server, or from gRPC's core.

    Where a message is being written when the call ends, grpc.aio puts an INTERNAL of its own in the place of
    that status. If that comes first, the status takes its place again, in silence: unless messages were not
    read yet, which come before it and are lost with it. For one event loop.

    Args:
        call: has just begun.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        self._call: Any = call
        self._status: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._look)

    async def behind(self, error: grpc.RpcError) -> grpc.RpcError:
        """What `error`, which the call raised, hides; itself where it hides nothing, or nothing comes."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + _MOMENT_SECONDS
        while (error.code(), error.details()) == _HIDDEN:
            self._look(self._call)
            if self._status is not None or loop.time() >= ends:
                return self._status or error
            await asyncio.sleep(_POLL_SECONDS)
        return error

    def _look(self, call: Any) -> None:
        """The call is done."""
        code, details = _now(call.code()), _now(call.details())
        if self._status is None and (code, details) != _HIDDEN:
            trailing = _now(call.trailing_metadata())
            self._status = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details)


def _now(ready: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that need not wait."""
    try:
        ready.send(None)
    except StopIteration as done:
        return done.value
    ready.close()
    raise RuntimeError("the call has no status, although it is done")

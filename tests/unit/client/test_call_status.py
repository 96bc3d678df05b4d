"""The status of a call, where grpc.aio puts another in its place."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from env_client import call_status
from env_client.call_status import CallStatus

if TYPE_CHECKING:
    from collections.abc import Callable

CODES = grpc.StatusCode
SAID, HIDDEN = (CODES.UNAVAILABLE, "said"), (CODES.INTERNAL, "Internal error from Core")


class Call:
    """A call as grpc.aio has it, whose status is set by hand."""

    def __init__(self) -> None:
        self.status: tuple[grpc.StatusCode, str] | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def set(self, status: tuple[grpc.StatusCode, str], *, tell: bool = True) -> grpc.aio.AioRpcError:
        self.status = status
        for callback in self._callbacks if tell else ():
            callback(self)
        return grpc.aio.AioRpcError(status[0], grpc.aio.Metadata(), grpc.aio.Metadata(), status[1])

    async def code(self) -> grpc.StatusCode:
        assert self.status is not None
        return self.status[0]

    async def details(self) -> str:
        assert self.status is not None
        return self.status[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(("key", "value"))


def watched() -> tuple[Any, CallStatus]:
    call: Any = Call()
    return call, CallStatus(call)


async def test_what_hides_nothing_stays_as_it_is() -> None:
    call, status = watched()
    for end in (SAID, (CODES.INTERNAL, "said")):
        error = call.set(end)
        assert await status.behind(error) is error


async def test_a_status_that_was_there_before() -> None:
    call, status = watched()
    call.set(SAID)
    found = await status.behind(call.set(HIDDEN))
    assert (found.code(), found.details()) == SAID
    assert tuple(found.trailing_metadata()) == (("key", "value"),)


@pytest.mark.parametrize("tell", [True, False])
async def test_a_status_that_comes_later_whether_grpc_tells_or_not(tell: bool) -> None:
    call, status = watched()
    error = call.set(HIDDEN)
    asyncio.get_running_loop().call_soon(lambda: call.set(SAID, tell=tell))
    found = await status.behind(error)
    assert (found.code(), found.details()) == SAID


async def test_a_status_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_status, "_MOMENT_SECONDS", 0.0)
    call, status = watched()
    error = call.set(HIDDEN)
    assert await status.behind(error) is error


async def test_calls_that_end_while_they_are_written_have_the_status_of_their_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_status, "_MOMENT_SECONDS", 20.0)

    async def handler(_: object, context: Any) -> None:
        await context.read()
        await context.abort(*SAID)

    async def written(call: Any) -> None:
        try:
            while True:
                await call.write(b"more")
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass

    async def end(call: Any, status: CallStatus) -> str:
        try:
            while True:
                assert await call.read() is not grpc.aio.EOF
        except grpc.RpcError as error:
            return str((await status.behind(error)).details())

    server = grpc.aio.server()
    handlers = {"M": grpc.stream_stream_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("S", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ends: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for _ in range(60):
            call = channel.stream_stream("/S/M")()
            _, said = await asyncio.gather(written(call), end(call, CallStatus(call)))
            ends[said] += 1
    await server.stop(0)
    assert ends == {"said": 60}

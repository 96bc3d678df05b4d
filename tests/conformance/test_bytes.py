"""Requests that are no messages are refused in the contract's words, and crowds of calls lose none."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import env_service_pb2 as pb

from tests.helpers.stub_client import OPTIONS, new_id, reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from tests.helpers.pools import Subject

SERVICE = "/envtrio.v1.EnvService/"
NO_MESSAGE = b"\xff\xff\xff"


@pytest.fixture
async def channel(subject: Subject) -> AsyncIterator[grpc.aio.Channel]:
    """A channel that sends bytes as they are."""
    async with grpc.aio.insecure_channel(subject.address, options=OPTIONS) as channel:
        yield channel


async def status_of(answer: Awaitable[Any]) -> tuple[str, str]:
    """Code and reason."""
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        return error.code().name, reason_of(error)
    return "OK", ""


def call(channel: grpc.aio.Channel, method: str, data: bytes) -> Awaitable[Any]:
    """A call of one request, to its first answer."""
    if method == "Run":
        return channel.unary_stream(SERVICE + method)(data, timeout=60).read()
    return channel.unary_unary(SERVICE + method)(data, timeout=60)


@pytest.mark.parametrize("method", ["Run", "Cancel", "Describe"])
async def test_bytes_that_are_no_request_are_refused_by_name(channel: grpc.aio.Channel, method: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(channel, method, NO_MESSAGE)
    assert (refused.value.code().name, reason_of(refused.value)) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert f"3 bytes is no {method}Request" in (refused.value.details() or "")


@pytest.mark.parametrize("opened", [False, True])
async def test_bytes_that_are_no_frame_end_their_session(channel: grpc.aio.Channel, opened: bool) -> None:
    session: Any = channel.stream_stream(SERVICE + "Session")()
    if opened:
        opening = pb.SessionOpen(session_id=new_id(), epoch=1, protocol_generation=1)
        await session.write(pb.SessionRequest(open=opening).SerializeToString())
        await session.read()
    await session.write(NO_MESSAGE)
    assert await status_of(session.read()) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_of_fifteen_hundred_runs_at_once_each_is_answered_in_the_contracts_words(
    channel: grpc.aio.Channel,
) -> None:
    def request() -> bytes:
        fields = {"protocol_generation": 1, "environment": "none", "task_json": "{}"}
        return pb.RunRequest(request_id=new_id(), **fields).SerializeToString()

    statuses = await asyncio.gather(*(status_of(call(channel, "Run", request())) for _ in range(1_500)))
    assert Counter(statuses) == {("NOT_FOUND", "ENVIRONMENT_NOT_FOUND"): 1_500}


async def test_of_two_thousand_cancels_at_once_each_is_answered_in_the_contracts_words(
    channel: grpc.aio.Channel,
) -> None:
    def request() -> bytes:
        return pb.CancelRequest(request_id=new_id(), protocol_generation=1).SerializeToString()

    statuses = await asyncio.gather(*(status_of(call(channel, "Cancel", request())) for _ in range(2_000)))
    assert Counter(statuses) == {("OK", ""): 2_000}

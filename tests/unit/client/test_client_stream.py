"""A run delta by delta: what is delivered, and what is left is cancelled."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from env_client import EnvClient
from tests.helpers.deltas import episode_stream, growth, opening, reply
from tests.helpers.scripted_service import Hang, Send

if TYPE_CHECKING:
    from envtrio.v1.delta_pb2 import DeltaStream

    from tests.helpers.scripted_service import ScriptedService

RUN = "0123456789abcdef0123456789abcdef"
TRANSPORTS = ("run", "lane")
BIG = 200_000  # Tokens: more than 1 MiB a message.


def sends(*messages: DeltaStream | bytes) -> list[Send]:
    return [Send(message) for message in messages]


async def test_left_iteration(service: ScriptedService) -> None:
    service.on_run(*sends(opening()), Hang())
    async with EnvClient(service.address) as client, client.stream({}, request_id=RUN) as stream:
        async for delta in stream:
            assert delta.seq == 0
            break
    assert stream.episode is None
    assert service.cancelled_ids() == [RUN]


async def test_left_after_the_last_delta_but_before_the_end(service: ScriptedService) -> None:
    messages = episode_stream()
    service.on_run(*sends(*messages))
    async with EnvClient(service.address) as client:
        async with client.stream({}, request_id=RUN) as stream:
            for _ in range(3):
                await anext(stream)
        assert stream.episode is None
    assert service.cancelled_ids() == [RUN]


async def test_iterated_to_the_end_it_is_delivered(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    async with EnvClient(service.address) as client:
        async with client.stream({}, request_id=RUN) as stream:
            seqs = [delta.seq async for delta in stream]
            assert stream.episode is not None
            assert await stream.result() is stream.episode
            with contextlib.suppress(ValueError):
                raise ValueError("what happens in the body now is the caller's own business")
        assert stream.received_bytes > 0
    assert seqs == [0, 1, 2]
    assert service.cancelled_ids() == []


async def test_the_rest_of_an_iteration_as_a_result(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    rest: list[int] = []
    async with EnvClient(service.address) as client, client.stream({}) as stream:
        await anext(stream)
        episode = await stream.result(lambda delta: rest.append(delta.seq))
    assert rest == [1, 2]
    assert len(episode.traces[0].nodes) == 3
    assert service.cancelled_ids() == []


async def test_a_stream_must_be_entered(service: ScriptedService) -> None:
    async with EnvClient(service.address) as client:
        with pytest.raises(RuntimeError, match="async with"):
            await client.stream({}).result()


async def test_big_messages_keep_their_order(service: ScriptedService) -> None:
    messages = [opening(), growth(1, count=BIG), growth(2), growth(3, count=BIG), growth(4)]
    service.on_run(*sends(*messages, reply(*messages)))
    seqs: list[int] = []
    async with EnvClient(service.address) as client:
        episode = await client.run({}, on_delta=lambda delta: seqs.append(delta.seq))
    assert seqs == [0, 1, 2, 3, 4]
    assert [len(node.mask) for node in episode.traces[0].nodes] == [2, BIG, 3, BIG, 3]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_a_body_that_raises_what_cannot_be_printed_cancels_all_the_same(
    service: ScriptedService,
) -> None:
    service.on_run(*sends(opening()), Hang())
    async with EnvClient(service.address) as client:

        async def leave() -> None:
            async with client.stream({}, request_id=RUN) as stream:
                async for _ in stream:
                    raise UnprintableError

        with pytest.raises(UnprintableError):
            await leave()
    assert service.cancelled_ids() == [RUN]
    assert service.cancels[0].cause == "UnprintableError: (its message cannot be read)"


async def test_a_callback_that_raises_what_cannot_be_printed_cancels_all_the_same(
    service: ScriptedService,
) -> None:
    def fail(_: object) -> None:
        raise UnprintableError

    service.on_run(*sends(opening()), Hang())
    async with EnvClient(service.address) as client:
        with pytest.raises(UnprintableError):
            await client.run({}, request_id=RUN, on_delta=fail)
    assert service.cancelled_ids() == [RUN]

"""A run that is cancelled at each of its suspension points in turn: told each time, or delivered for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from env_client import EnvClient, EnvError
from tests.helpers.deltas import episode_stream
from tests.helpers.scripted_service import ScriptedService, Send
from tests.helpers.suspensions import Moment, Suspensions, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = "0123456789abcdef0123456789abcdef"
BIG = 200_000  # Tokens: more than 1 MiB a message.
TRANSPORTS = ("run", "lane")


def service_for_one_run(sessions: bool, carries: bool, count: int = 3) -> ScriptedService:
    service = ScriptedService(sessions=sessions, carries=carries)
    service.on_run(*[Send(message) for message in episode_stream(count=count)], optional=True)
    return service


async def suspend_in_callback(_delta: object) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "no sessions"])
@pytest.mark.parametrize("count", [3, BIG], ids=["small", "big"])
async def test_cancelled(moment: Moment, sessions: bool, count: int, carries: bool) -> None:
    places: list[str] = []
    for point in Suspensions(asyncio.Task.cancel, moment):
        with service_for_one_run(sessions, carries, count) as service:
            async with EnvClient(service.address) as client:
                run = client.run({}, request_id=RUN, on_delta=suspend_in_callback)
                outcome = await outcome_of(point.drive(run))
            if point.reached:
                assert isinstance(outcome, asyncio.CancelledError), point
                assert service.cancelled_ids() == [RUN], point
                places.append(point.where)
            else:
                assert not isinstance(outcome, BaseException), point
                assert service.cancelled_ids() == []
            assert service.sessions is None or service.sessions.ends == ["goodbye"], point
    waited = " ".join(places)
    for function in ("_next_batch", "suspend_in_callback", "_confirmed", *["SideThread.do"] * (count == BIG)):
        assert function in waited, "a place where a run waits was not tried: is the test still right?"


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(lambda client: asyncio.ensure_future(client.close()), id="client closed"),
        pytest.param(lambda client: asyncio.ensure_future(client.cancel(RUN)), id="cancelled by another"),
    ],
)
async def test_disturbed_otherwise(leave: Callable[[EnvClient], asyncio.Future[Any]], carries: bool) -> None:
    """The client closes, or somebody else cancels: the run ends by a word of its own, and nothing is owed."""
    others: list[asyncio.Future[Any]] = []
    clients: list[EnvClient] = []
    for point in Suspensions(lambda _: others.append(leave(clients[-1]))):
        with service_for_one_run(True, carries) as service:
            clients.append(EnvClient(service.address))
            outcome = await outcome_of(point.drive(clients[-1].run({}, request_id=RUN)))
            await asyncio.gather(*others)
            await clients[-1].close()
            delivered = not isinstance(outcome, BaseException)
            assert delivered or isinstance(outcome, EnvError), point
            told = service.cancelled_ids()
            assert told == [RUN] or (delivered and told == []), point

"""What an intake owes the server: a confirmation or a cancel, and never one where the other has been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from envtrio.v1.env_service_pb2 import RunRequest
from envtrio.v1.episode_pb2 import Episode

from env_client import DeliveryUncertainError, RunCancelledError
from env_client.confirmations import Verdict
from env_client.errors import SessionEndedError
from env_client.intake import Intake
from env_client.session_driver import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_client.session_driver import Settlement

RUN = "0123456789abcdef" * 2


class World:
    """The session and the courier of one intake; `sent` has what left, in order."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        request = RunRequest(request_id=RUN)
        self.intake = Intake(request, lambda *_: self.sent.append("cancel"), cast("Any", self))

    def confirm(self, request_id: str, settle: Callable[[Settlement], object]) -> Ticket:
        self.sent.append("confirm")
        return Ticket(request_id, settle)

    def withdraw(self, ticket: Ticket) -> None:
        assert ticket.request_id == RUN
        self.sent.append("withdraw")


@pytest.fixture
def world() -> World:
    return World()


def test_a_run_that_was_abandoned_is_not_confirmed(world: World) -> None:
    world.intake.abandon("a test")
    with pytest.raises(RunCancelledError):
        world.intake.confirm(lambda _: None)
    assert world.sent == ["cancel"]


def test_a_confirmation_that_waits_is_withdrawn_and_the_run_cancelled_once(world: World) -> None:
    world.intake.confirm(lambda _: None)
    world.intake.abandon("a test")
    world.intake.abandon("again")
    assert world.sent == ["confirm", "withdraw", "cancel"]


def test_only_the_session_settles_a_confirmation(world: World) -> None:
    settled: list[Settlement] = []
    world.intake.confirm(settled.append)
    assert (settled, world.sent) == ([], ["confirm"])


@pytest.mark.parametrize("settlement", [Verdict.CONFIRMED, Verdict.UNANSWERED])
def test_what_was_abandoned_is_not_delivered_whatever_is_answered(
    world: World, settlement: Settlement
) -> None:
    world.intake.confirm(lambda _: None)
    world.intake.abandon("a test")
    with pytest.raises(RunCancelledError):
        world.intake.deliver(Episode(), settlement)
    assert world.intake.episode is None


@pytest.mark.parametrize("settlement", [Verdict.CONFIRMED, Verdict.NOT_OFFERED])
def test_what_is_delivered_is_not_cancelled(world: World, settlement: Settlement) -> None:
    episode = Episode()
    world.intake.confirm(lambda _: None)
    assert world.intake.deliver(episode, settlement) is episode is world.intake.episode
    world.intake.abandon("a test")
    assert world.sent == ["confirm"]


@pytest.mark.parametrize(
    ("settlement", "error", "reason"),
    [
        (Verdict.DISCARDED, RunCancelledError, ""),
        (Verdict.WORKER_LOST, DeliveryUncertainError, "WORKER_LOST"),
        (Verdict.UNANSWERED, DeliveryUncertainError, ""),
        (
            SessionEndedError("over", reason="SESSION_SUPERSEDED"),
            DeliveryUncertainError,
            "SESSION_SUPERSEDED",
        ),
    ],
)
def test_what_is_not_confirmed_is_neither_delivered_nor_cancelled(
    world: World, settlement: Settlement, error: type[Exception], reason: str
) -> None:
    episode = Episode()
    world.intake.confirm(lambda _: None)
    with pytest.raises(error) as raised:
        world.intake.deliver(episode, settlement)
    assert cast("Any", raised.value).reason == reason
    if isinstance(raised.value, DeliveryUncertainError):
        assert raised.value.episode is episode
    world.intake.abandon("a test")
    assert world.intake.episode is None
    assert world.sent == ["confirm"]

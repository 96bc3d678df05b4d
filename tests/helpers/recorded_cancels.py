"""Cancels that an EnvClient sends by itself, recorded for the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2

from env_client.channels import open_sync_channel
from tests.helpers.history import CancelAnswered, CancelSent
from tests.helpers.stub_client import reason_of

if TYPE_CHECKING:
    from tests.helpers.history import History


class _Recorder(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, history: History) -> None:
        self._history = history

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Note each Cancel and its answer."""
        if not isinstance(request, env_service_pb2.CancelRequest):
            return continuation(details, request)
        run = request.request_id
        self._history.note(CancelSent, run)
        call = continuation(details, request)
        call.add_done_callback(
            lambda answer: self._history.note(CancelAnswered, run, outcome=outcome_of(answer))
        )
        return call


def open_recorded_channel(address: str, history: History) -> grpc.Channel:
    """A channel for a `CancelCourier`."""
    return grpc.intercept_channel(open_sync_channel(address, None), _Recorder(history))


def outcome_of(answer: Any) -> str:
    """What the future of a Cancel has come to, as in CancelAnswered."""
    if answer.cancelled():
        return "CANCELLED"
    if (error := answer.exception()) is not None:
        return f"{error.code().name} {reason_of(error)}"
    response = answer.result()
    name = env_service_pb2.CancelOutcome.Name(response.outcome).removeprefix("CANCEL_OUTCOME_")
    return name + (" WORKER_LOST" if response.reason else "")

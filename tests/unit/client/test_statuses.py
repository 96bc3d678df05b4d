"""From statuses to exceptions: one table, and nothing lost on the way."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from envtrio.v1.episode_pb2 import Episode
from envtrio.v1.errors_pb2 import ErrorReason

import env_client
from env_client import DeliveryUncertainError, EnvError, arrays
from env_client.errors import error_class
from env_client.statuses import env_error

TABLE = {
    ("INVALID_ARGUMENT", "INVALID_REQUEST"): "InvalidRequestError",
    ("INVALID_ARGUMENT", "INVALID_REQUEST_ID"): "InvalidRequestError",
    ("INVALID_ARGUMENT", "ENDPOINT_NOT_ALLOWED"): "InvalidRequestError",
    ("INVALID_ARGUMENT", "INVALID_TASK"): "InvalidTaskError",
    ("FAILED_PRECONDITION", "PROTOCOL_GENERATION"): "ProtocolMismatchError",
    ("NOT_FOUND", "ENVIRONMENT_NOT_FOUND"): "EnvironmentNotFoundError",
    ("NOT_FOUND", "ARRAYS_LOST"): "ArraysLostError",
    ("NOT_FOUND", "ARRAYS_NOT_FOUND"): "ArraysNotFoundError",
    ("FAILED_PRECONDITION", "ARRAYS_INCOMPLETE"): "ArraysIncompleteError",
    ("OUT_OF_RANGE", "TOKEN_RANGE"): "TokenRangeError",
    ("ALREADY_EXISTS", "DUPLICATE_REQUEST_ID"): "DuplicateRequestError",
    ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE"): "MessageTooLargeError",
    ("RESOURCE_EXHAUSTED", "QUEUE_FULL"): "QueueFullError",
    ("RESOURCE_EXHAUSTED", "TABLE_FULL"): "ResourceExhaustedError",
    ("RESOURCE_EXHAUSTED", "ARRAY_BUDGET"): "ArrayBudgetError",
    ("CANCELLED", "CANCEL_REQUESTED"): "RunCancelledError",
    ("CANCELLED", "CALLER_LOST"): "RunCancelledError",
    ("CANCELLED", "SESSION_LOST"): "RunCancelledError",
    ("DEADLINE_EXCEEDED", "DEADLINE"): "RunDeadlineError",
    ("UNAVAILABLE", "WORKER_LOST"): "WorkerLostError",
    ("UNAVAILABLE", "DRAINING"): "DrainingError",
    ("UNAVAILABLE", "NO_WORKER_READY"): "UnavailableError",
    ("UNAVAILABLE", "NOT_ADMITTED"): "UnavailableError",
    ("UNAVAILABLE", "WORKER_SILENT"): "UnavailableError",
    ("INTERNAL", "HOOK_FAILED"): "HookFailedError",
    ("INTERNAL", "ENVIRONMENT_FAILED"): "EnvironmentFailedError",
    ("INTERNAL", "INTERNAL"): "InternalError",
    ("INTERNAL", "PROTOCOL_VIOLATION"): "InternalError",
    ("UNKNOWN", ""): "InternalError",
    ("UNAVAILABLE", ""): "UnavailableError",
    ("UNAUTHENTICATED", "UNAUTHENTICATED"): "EnvError",
}


@pytest.mark.parametrize(("status", "name"), TABLE.items())
def test_the_table(status: tuple[str, str], name: str) -> None:
    code, reason = status
    assert error_class(code, reason) is getattr(env_client, name)
    assert not reason or f"ERROR_REASON_{reason}" in ErrorReason.keys()  # noqa: SIM118


class Broken(grpc.RpcError):
    """A call that ended with a status."""

    def __init__(self, details: bytes | None) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    def details(self) -> str:
        return ""

    def trailing_metadata(self) -> Any:
        return None if self._details is None else (("x", "y"), ("grpc-status-details-bin", self._details))


@pytest.mark.parametrize("details", [None, b"", b"\xff\xff"], ids=["none", "empty", "undecodable"])
def test_statuses_that_grpc_made(details: bytes | None) -> None:
    error = env_error(Broken(details), "0123456789abcdef" * 2)
    assert (error.code, error.reason, error.retry_after) == ("INTERNAL", "", None)
    assert str(error) == "run 01234567: INTERNAL (no word of it from the server): no details"


def test_delivery_uncertain_carries_the_episode() -> None:
    episode = Episode()
    error = DeliveryUncertainError("no answer", episode=episode, request_id="r")
    assert error.episode is episode
    assert (error.code, error.reason, error.request_id) == ("UNAVAILABLE", "", "r")


def test_public_names() -> None:
    for name in env_client.__all__:
        value = getattr(env_client, name)
        if name.endswith("Error"):
            assert issubclass(value, EnvError)
    assert env_client.arrays is arrays

"""Why a Session stream that carries runs is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from env_client.errors import EnvError


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Why a stream is over.

    Attributes:
        why: for people.
        code: what that is to a run that it carried.
        error: what the server or gRPC said; None where neither did.
        is_torn: whether its tasks were cancelled, as happens when an event loop is torn down.
    """

    why: str
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    error: EnvError | None = None
    is_torn: bool = False

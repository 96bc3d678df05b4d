"""Why a Session stream that carries runs is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc

from env_client.lane_frames import RunStatus
from env_client.statuses import env_error, status_details

if TYPE_CHECKING:
    from env_client.errors import EnvError


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Why a stream is over.

    Attributes:
        why: for people.
        code: what that is to a run that it carried.
        error: what the server or gRPC said; None where neither did.
        refusal: how the server refuses the runs of which nothing came, where it stops: what it had begun it
            has ended before. None where it does not say that.
        is_torn: whether its tasks were cancelled, as happens when an event loop is torn down.
    """

    why: str
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    error: EnvError | None = None
    refusal: RunStatus | None = None
    is_torn: bool = False

    @classmethod
    def of(cls, error: grpc.RpcError) -> Self:
        """That of a stream whose call ended so."""
        said, refusal = env_error(error), None
        if said.reason == "DRAINING":
            refusal = RunStatus(error.code().value[0], error.details() or "", status_details(error))
        return cls(str(said), error=said, refusal=refusal)

    def status_of(self, *, nothing_came: bool) -> RunStatus:
        """What it is to a run that it carried, of which nothing came, or something."""
        if self.refusal is not None and nothing_came:
            return self.refusal
        return RunStatus(self.code.value[0], f"the stream that carried this run broke: {self.why}")

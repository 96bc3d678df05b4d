"""A client process that opens a session, runs one episode, says "replied", and never confirms it.

python -m tests.helpers.unconfirming_client ADDRESS REQUEST_ID SESSION_ID
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2, env_service_pb2_grpc

from tests.helpers.stub_client import GENERATION, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(address: str, request_id: str, session_id: str) -> None:
    """Until it is killed."""
    stub: Any = env_service_pb2_grpc.EnvServiceStub(grpc.insecure_channel(address, options=OPTIONS))

    def frames() -> Iterator[env_service_pb2.SessionRequest]:
        opening = env_service_pb2.SessionOpen(session_id=session_id, epoch=1, protocol_generation=GENERATION)
        yield env_service_pb2.SessionRequest(open=opening)
        threading.Event().wait()

    responses = stub.Session(frames())
    assert next(responses).HasField("opened")
    request = env_service_pb2.RunRequest(
        request_id=request_id,
        protocol_generation=GENERATION,
        environment="synthetic",
        task_json='{"turns": 1}',
        session_id=session_id,
    )
    *_, last = stub.Run(request)
    print("replied" if last.HasField("reply") else "no reply", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

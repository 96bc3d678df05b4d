"""A worker that sends what is no frame is told so, and its lease ends."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from envtrio.v1.registry_service_pb2 import RegisterRequest

from tests.helpers.raw_client import connected
from tests.helpers.scripted_worker import ScriptedWorker
from tests.helpers.stub_client import OPTIONS, reason_of


@pytest.mark.parametrize("registered", [False, True])
async def test_bytes_that_are_no_frame_end_the_lease_by_name(registered: bool) -> None:
    async with (
        connected() as (broker, _),
        ScriptedWorker() as worker,
        grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
    ):
        call: Any = channel.stream_stream("/envtrio.v1.RegistryService/Register")()
        if registered:
            await call.write(RegisterRequest(hello=worker.hello()).SerializeToString())
            assert await call.read()
            assert len(broker.pool) == 1
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.read()
        assert (ended.value.code().name, reason_of(ended.value)) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert len(broker.pool) == 0

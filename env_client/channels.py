"""How this client talks to a server: channel options and method names."""

from __future__ import annotations

from typing import Final

import grpc
from envtrio.v1 import env_service_pb2
from grpc_health.v1 import health_pb2

from env_client.request import MAX_MESSAGE_BYTES

_ENVELOPE_BYTES: Final = 1024 * 1024

_SERVICE: Final = env_service_pb2.DESCRIPTOR.services_by_name["EnvService"].full_name
RUN_METHOD: Final = f"/{_SERVICE}/Run"
"""Called without a deserializer, so that big messages are decoded off the event loop."""
SESSION_METHOD: Final = f"/{_SERVICE}/Session"
"""Called without a stub: making one on a channel that its owner has closed ends the process."""

_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + _ENVELOPE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + _ENVELOPE_BYTES),
    # Variables such as http_proxy are set for web pages: through such a proxy a pool of the same network is
    # not found, and long silent streams are cut. As on the broker's and the workers' hops.
    ("grpc.enable_http_proxy", 0),
    # A stopped or cut-off server is noticed after the sum of the first two; the third lets a long silent
    # episode be watched without an end. Servers allow pings this often.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A broker that was restarted is found again within two seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of its name this is how long one attempt may take: a busy host needs over 100 ms at times.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)

SERVING_NAMES: Final = {number: name for name, number in health_pb2.HealthCheckResponse.ServingStatus.items()}


def open_sync_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A synchronous channel; it connects when it is first used. Without credentials it is in the clear."""
    if credentials is None:
        return grpc.insecure_channel(target, _OPTIONS)
    return grpc.secure_channel(target, credentials, _OPTIONS)


def open_aio_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """As `open_sync_channel`, for the running event loop."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, _OPTIONS)
    return grpc.aio.secure_channel(target, credentials, _OPTIONS)

"""Options of gRPC servers and channels: message limits and keepalive."""

from __future__ import annotations

from typing import Final

from env_worker.delta.limits import MAX_MESSAGE_BYTES

_ENVELOPE_BYTES: Final = 1024 * 1024
_MESSAGES: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + _ENVELOPE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + _ENVELOPE_BYTES),
)
# A peer that was stopped or cut off says nothing. It is found after time + timeout; all four are needed, and
# the server must allow pings that often, or a long silent episode ends in GOAWAY "too many pings".
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: Final = (
    *_MESSAGES,
    *_KEEPALIVE,
    # gRPC would drop calls at random, and without a reason, beyond 1,000 that its loop has not taken up yet.
    # What is too much is for admission to say.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    ("grpc.so_reuseport", 0),  # a second server on a port fails, instead of taking half of the calls
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)
CHANNEL_OPTIONS: Final = (
    *_MESSAGES,
    *_KEEPALIVE,
    ("grpc.enable_http_proxy", 0),
    # The caller backs off by itself: a broker that comes back is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name this is how long one attempt may take. Where packets were dropped, TCP repeats its
    # own at longer and longer intervals: a network that has healed is found by a new attempt.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)

"""Options of gRPC servers and channels: message limits and keepalive."""

from __future__ import annotations

from typing import Final

MEBIBYTE: Final = 1024 * 1024
MAX_MESSAGE_BYTES: Final = 64 * MEBIBYTE
"""Most bytes of one message's payload, on every hop."""

_SIZES: Final = (
    # Receivers allow 1 MiB more, for envelopes.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + MEBIBYTE),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + MEBIBYTE),
)

SERVER_OPTIONS: Final = (
    *_SIZES,
    # A second broker on the port fails instead of getting half of the calls.
    ("grpc.so_reuseport", 0),
    # gRPC would drop calls at random, and without a reason, beyond 1,000 that its loop has not taken up yet.
    # What is too much is for admission to say.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    # Finds clients and workers that were cut off without a word, after the sum of the first two.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Peers may ping as often as twice a second, or a long silent episode would end in "Too many pings".
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
)

CHANNEL_OPTIONS: Final = (
    *_SIZES,
    # A worker that was stopped or cut off is found after the sum of the first two, also while it has no run;
    # and a run that says nothing for half an hour lives. Workers' servers allow a ping every 500 ms.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_http_proxy", 0),
    # Never: gRPC would close a connection that had no run for half an hour, which looks like one that broke.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    # A worker that came back at its old address gets a connection of its own, not a broken one's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of its name this is how long one attempt may take. Where packets were dropped, TCP repeats its
    # own at longer and longer intervals: a network that has healed is found by a new attempt.
    ("grpc.min_reconnect_backoff_ms", 2_000),
)

"""Requests from bytes, so that what is wrong with them is said in the contract's words."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from env_broker.status import Refusal

MessageT = TypeVar("MessageT", bound=Message)


def decoded(kind: type[MessageT], data: bytes) -> MessageT:
    """The message in `data`. Refusal if there is none, where gRPC itself would say INTERNAL or UNKNOWN."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = kind.DESCRIPTOR.name
        raise Refusal(
            "INVALID_REQUEST",
            f"the request of {len(data)} bytes is no {name} ({error}); use the stubs of envtrio.v1",
            field=name,
        ) from None

"""What the schema itself promises: the stream has no room for training arrays, nor for Struct."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from envtrio.v1 import delta_pb2, episode_pb2
from google.protobuf import descriptor_pb2, struct_pb2

from env_worker.domain import TRAINING_ARRAY_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, FieldDescriptor

ARRAY_LIKE = re.compile(
    r"rout(ed|ing)|expert|sampling_?mask|top_?(k_?)?logprob|top_?k|moe|repair", re.IGNORECASE
)
FORBIDDEN_TYPES = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")}


def reachable(root: Descriptor) -> dict[str, Descriptor]:
    """Every message that can stand in `root`, by full name."""
    found: dict[str, Descriptor] = {}
    queue = [root]
    while queue:
        message = queue.pop()
        if message.full_name not in found:
            found[message.full_name] = message
            queue += [field.message_type for field in message.fields if field.message_type is not None]
    return found


def fields(root: Descriptor) -> Iterator[FieldDescriptor]:
    for message in reachable(root).values():
        yield from message.fields


def reserved(message: Descriptor) -> tuple[set[str], set[int]]:
    proto = descriptor_pb2.DescriptorProto()
    message.CopyToProto(proto)
    numbers = {number for span in proto.reserved_range for number in range(span.start, span.end)}
    return set(proto.reserved_name), numbers


STREAM = delta_pb2.DeltaStream.DESCRIPTOR


def test_the_walk_sees_the_whole_stream() -> None:
    assert {"envtrio.v1.Node", "envtrio.v1.Pending", "envtrio.v1.ToolCall", "envtrio.v1.TraceCounts"} <= set(
        reachable(STREAM)
    )
    assert "envtrio.v1.Trace.InfoJsonEntry" in reachable(STREAM)


def test_no_field_of_the_stream_is_for_training_arrays() -> None:
    assert [field.full_name for field in fields(STREAM) if ARRAY_LIKE.search(field.name)] == []


@pytest.mark.parametrize(
    "name",
    [
        *TRAINING_ARRAY_FIELDS,
        "routing_repairs",
        "moe_ids",
        "expert_ids",
        "topk_logprobs",
        "topLogprobs",
        "routing",
    ],
)
def test_the_check_would_notice_an_array_by_any_likely_name(name: str) -> None:
    assert ARRAY_LIKE.search(name)


def test_no_message_of_the_stream_is_free_form() -> None:
    assert FORBIDDEN_TYPES & set(reachable(STREAM)) == set()
    assert FORBIDDEN_TYPES & set(reachable(struct_pb2.Struct.DESCRIPTOR)), "the check would notice one"


def test_the_assembled_episode_has_no_array_either() -> None:
    assert [
        field.full_name for field in fields(episode_pb2.Episode.DESCRIPTOR) if ARRAY_LIKE.search(field.name)
    ] == []


def test_node_and_delta_reserve_the_names_for_good() -> None:
    names, numbers = reserved(episode_pb2.Node.DESCRIPTOR)
    assert names >= set(TRAINING_ARRAY_FIELDS)
    assert numbers >= set(range(20, 30))
    names, numbers = reserved(delta_pb2.TraceDelta.DESCRIPTOR)
    assert "routing_repairs" in names
    assert numbers >= set(range(20, 30))


def test_streams_may_be_joined() -> None:
    """Concatenation is merging where a message has no oneof, and one submessage that comes once, last."""
    assert not STREAM.oneofs
    assert [field.name for field in STREAM.fields if not field.is_repeated] == ["reply"]


def test_what_may_change_in_a_trace_is_whole_or_explicitly_present() -> None:
    """The merge's traps: a plain scalar cannot be reset, a submessage would merge field by field."""
    for field in episode_pb2.Trace.DESCRIPTOR.fields:
        assert field.is_repeated or field.has_presence, field.full_name
        if field.message_type is not None and not field.is_repeated:
            assert field.name == "header", f"{field.full_name} would merge field by field"
    assert episode_pb2.Node.DESCRIPTOR.fields_by_name["parent"].has_presence

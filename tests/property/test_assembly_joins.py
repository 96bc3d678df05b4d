"""However a stream is joined and cut, its assembly is the same; and no message is lost or doubled unseen."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_client import AssemblyError, EpisodeAssembly
from tests.helpers.deltas import growth, opening, reply
from tests.helpers.oracle import assembly_equals_source

if TYPE_CHECKING:
    from envtrio.v1.delta_pb2 import DeltaStream
    from envtrio.v1.episode_pb2 import Episode


@st.composite
def streams(draw: st.DrawFn) -> list[DeltaStream]:
    """The messages of a run: up to three traces that grow in turns, then the reply."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    left = {f"trace-{number}": [growth(seq, f"trace-{number}") for seq in range(1, size + 1)]
            for number, size in enumerate(sizes)}  # fmt: skip
    messages = [opening(name) for name in left]
    while any(left.values()):
        messages.append(left[draw(st.sampled_from([name for name, deltas in left.items() if deltas]))].pop(0))
    return [*messages, reply(*messages)]


def assembled(messages: list[bytes]) -> Episode:
    assembly = EpisodeAssembly()
    for message in messages:
        assembly.apply(message)
    return assembly.finish()


@given(streams(), st.data())
def test_joins_change_nothing(messages: list[DeltaStream], data: st.DataObject) -> None:
    parts = [message.SerializeToString() for message in messages]
    joined = [parts[0]]
    for part in parts[1:]:
        if data.draw(st.booleans()):
            joined[-1] += part
        else:
            joined.append(part)
    assembly_equals_source(assembled(joined), assembled(parts))


@given(streams(), st.data())
def test_a_lost_message_never_goes_unseen(messages: list[DeltaStream], data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, len(messages) - 1))
    with pytest.raises(AssemblyError):
        assembled([message.SerializeToString() for place, message in enumerate(messages) if place != lost])


@given(streams(), st.data())
def test_a_doubled_message_never_goes_unseen(messages: list[DeltaStream], data: st.DataObject) -> None:
    doubled = data.draw(st.integers(0, len(messages) - 1))
    twice = [*messages[: doubled + 1], *messages[doubled:]]
    with pytest.raises(AssemblyError):
        assembled([message.SerializeToString() for message in twice])


@given(st.binary(max_size=200))
def test_foreign_bytes_raise_nothing_else(data: bytes) -> None:
    assembly = EpisodeAssembly()
    with contextlib.suppress(AssemblyError):
        assembly.apply(data)
        assembly.finish()

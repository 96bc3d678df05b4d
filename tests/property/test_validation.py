"""What check_episode lets pass is exactly what episode.proto promises of nodes, calls and links."""

from __future__ import annotations

from envtrio.v1.episode_pb2 import Episode, Node, Trace
from hypothesis import given, settings
from hypothesis import strategies as st

from env_client import ValidationError, check_episode

_flags = st.lists(st.sampled_from([0, 1, 1, 2]), max_size=3).map(bytes)
_indices = st.none() | st.integers(0, 3)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A node whose streams fit each other, and often one that does not."""
    mask = bytes(draw(st.lists(st.integers(0, 1), max_size=3)))
    node = Node(token_ids=bytes(4 * len(mask)), mask=mask, parent=draw(_indices))
    node.is_content = draw(st.sampled_from([b"", mask]))
    node.logprobs = draw(st.sampled_from([b"", bytes(4 * mask.count(1))]))
    match draw(st.sampled_from(["", "", "", "", "token_ids", "mask", "is_content", "logprobs"])):
        case "token_ids":
            node.token_ids = bytes(draw(st.integers(0, 13)))
        case "mask":
            node.mask, node.logprobs = draw(_flags), b""
        case "is_content":
            node.is_content = draw(_flags)
        case "logprobs":
            node.logprobs = bytes(draw(st.integers(0, 13)))
    return node


@st.composite
def traces(draw: st.DrawFn, trace_id: str) -> Trace:
    """A trace of up to three nodes, with a call or a link."""
    trace = Trace(nodes=draw(st.lists(nodes(), max_size=3)))
    trace.header.trace_id = trace_id
    if draw(st.integers(0, 3)):
        for index, node in enumerate(trace.nodes):
            if node.parent >= index:
                node.ClearField("parent")
    # Mostly of nodes that there are, or nothing else would ever be looked at.
    some = st.integers(0, len(trace.nodes))
    match draw(st.sampled_from(["", "", "call", "link"])):
        case "call":
            trace.calls.add(node=draw(st.none() | some))
        case "link":
            other = draw(st.sampled_from(["", "", "a", "b"]))
            trace.links.add(source=draw(some), target=draw(some), target_trace_id=other)
    return trace


@settings(max_examples=300)
@given(st.just("a").flatmap(traces), st.none() | st.just("b").flatmap(traces))
def test_exactly_what_is_right_passes(first: Trace, second: Trace | None) -> None:
    episode = Episode(traces=[first] if second is None else [first, second])
    complaint = _complaint(episode)
    assert (complaint is None) == _is_right(episode), complaint


def _complaint(episode: Episode) -> str | None:
    try:
        check_episode(episode)
    except ValidationError as error:
        return str(error)
    return None


def _is_right(episode: Episode) -> bool:
    counts = {trace.header.trace_id: len(trace.nodes) for trace in episode.traces}
    return all(
        all(_is_right_node(index, node) for index, node in enumerate(trace.nodes))
        and all(not call.HasField("node") or call.node < len(trace.nodes) for call in trace.calls)
        and all(
            link.source < len(trace.nodes)
            and link.target < counts.get(link.target_trace_id or trace.header.trace_id, 0)
            for link in trace.links
        )
        for trace in episode.traces
    )


def _is_right_node(index: int, node: Node) -> bool:
    tokens, rest = divmod(len(node.token_ids), 4)
    return (
        (not node.HasField("parent") or node.parent < index)
        and rest == 0
        and len(node.mask) == tokens
        and len(node.is_content) in (0, tokens)
        and set(node.mask + node.is_content) <= {0, 1}
        and len(node.logprobs) in (0, 4 * node.mask.count(1))
    )

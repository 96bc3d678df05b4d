"""Which field is named when something is too large."""

from __future__ import annotations

import pytest
from envtrio.v1 import delta_pb2

from env_worker import wire
from env_worker.delta.diff import TraceCursor, diff
from env_worker.delta.limits import MessageTooLargeError, check_bound, largest_field
from env_worker.domain import (
    Call,
    CallAdded,
    Change,
    EpisodeError,
    ErrorAdded,
    ImagePart,
    InfoSet,
    JsonPart,
    Message,
    Node,
    NodeAdded,
    OkSet,
    Pending,
    PendingSet,
    Reward,
    RewardSet,
    TextPart,
    ToolCall,
    ToolsSet,
    Trace,
)

LARGE = "x" * 10_000
PLENTY = 2**20


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (NodeAdded(3, Node(Message.user(LARGE))), "nodes[3].message.content[0].text"),
        (NodeAdded(0, Node(Message.assistant("", reasoning=LARGE))), "nodes[0].message.reasoning"),
        (
            NodeAdded(
                12, Node(Message.assistant(tool_calls=[ToolCall("a", "b", "{}"), ToolCall("a", "b", LARGE)]))
            ),
            "nodes[12].message.tool_calls[1].arguments",
        ),
        (NodeAdded(1, Node(Message.user("x"), range(5_000))), "nodes[1].token_ids"),
        (CallAdded(2, Call(endpoint=LARGE)), "calls[2].endpoint"),
        (ErrorAdded(4, EpisodeError("E", "m", traceback=LARGE)), "errors[4].traceback"),
        (InfoSet("key", f'"{LARGE}"'), "info_json['key']"),
        (RewardSet(LARGE, Reward(1.0)), f"rewards['{LARGE}'].value"),
        (ToolsSet(LARGE), "tools_json"),
        (OkSet(True), "ok"),
        (
            PendingSet(Pending((Message.user("x"), Message.user(LARGE)))),
            "pending.messages[1].content[0].text",
        ),
        (PendingSet(None), "pending"),
    ],
)
def test_names_the_largest_field(change: Change, field: str) -> None:
    assert largest_field(change) == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (NodeAdded(3, Node(Message.user(LARGE))), "nodes[3].message.content[0].text"),
        (NodeAdded(3, Node(Message.user([ImagePart(LARGE)]))), "nodes[3].message.content[0].image_url"),
        (
            NodeAdded(3, Node(Message.user([JsonPart(f'{{"a":"{LARGE}"}}')]))),
            "nodes[3].message.content[0].json",
        ),
        (NodeAdded(3, Node(Message.user([TextPart(LARGE)]))), "nodes[3].message.content[0].text"),
        (NodeAdded(1, Node(Message.user("x"), range(5_000))), "nodes[1].token_ids"),
        (NodeAdded(1, Node(Message.assistant("", reasoning=LARGE))), "nodes[1].message.reasoning"),
        (
            NodeAdded(1, Node(Message.assistant(tool_calls=[ToolCall("a", "b", LARGE)]))),
            "nodes[1].message.tool_calls[0].arguments",
        ),
        (PendingSet(Pending((Message.user(LARGE),))), "pending.messages[].content[0].text"),
        (InfoSet("key", f'"{LARGE}"'), "info_json['key']"),
        (ToolsSet(LARGE), "tools_json"),
    ],
)
def test_what_cannot_fit_is_refused_without_being_encoded(
    change: Change, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pending", "node", "message"):
        monkeypatch.setattr(wire, name, lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(MessageTooLargeError) as raised:
        check_bound(change, "t", 9_999)
    assert raised.value.field == f"{field} of trace 't'"
    assert raised.value.value >= 10_000
    assert raised.value.limit == 9_999
    check_bound(change, "t", 30_000)


@pytest.mark.parametrize(
    "message",
    [
        Message("user", "1234", "56", extra_json="{}"),
        Message("user", (TextPart("1234"),), "56", extra_json="{}"),
        Message("user", "12", tool_calls=(ToolCall("a", "b", "345678"),)),
    ],
)
def test_the_bound_is_what_a_node_holds_to_the_byte(message: Message) -> None:
    # 8 of the message, 8 + 2 + 2 + 4 of the streams, 2 of the tools.
    node = Node(message, [1, 2], sampled=True, mask=[0, 1], is_content=[0, 1], logprobs=[0], tools_json="[]")
    check_bound(NodeAdded(0, node), "t", 26)
    with pytest.raises(MessageTooLargeError, match="of 26 bytes or more"):
        check_bound(NodeAdded(0, node), "t", 25)
    check_bound(PendingSet(Pending((message, message))), "t", 16)
    with pytest.raises(MessageTooLargeError, match="of 16 bytes or more"):
        check_bound(PendingSet(Pending((message, message))), "t", 15)


def test_a_large_node_is_refused_by_the_diff_and_what_is_before_it_crosses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = Trace("t")
    trace.add_node(Message.user("before"))
    trace.add_node(Message.user(LARGE), parent=0)
    data, cursor = diff(trace, TraceCursor(), PLENTY, 9_999)
    assert data is not None
    assert len(delta_pb2.TraceDelta.FromString(data).append.nodes) == 1
    monkeypatch.setattr(wire, "node", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(MessageTooLargeError, match=r"nodes\[1\].*split it over several nodes"):
        diff(trace, cursor, PLENTY, 9_999)

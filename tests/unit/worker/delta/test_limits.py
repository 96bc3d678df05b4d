"""Which field is named when something is too large."""

from __future__ import annotations

import pytest

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
    for name in ("partial_trace", "pending", "node"):
        monkeypatch.setattr(wire, name, lambda *_: pytest.fail("it was encoded"), raising=False)
    with pytest.raises(MessageTooLargeError) as raised:
        check_bound(change, "t", 9_999)
    assert raised.value.field == f"{field} of trace 't'"
    assert raised.value.value >= 10_000
    assert raised.value.limit == 9_999
    check_bound(change, "t", 30_000)


def test_a_large_node_is_refused_by_the_diff_and_what_is_before_it_crosses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = Trace("t")
    trace.add_node(Message.user("before"))
    trace.add_node(Message.user(LARGE), parent=0)
    delta, cursor = diff(trace, TraceCursor(), PLENTY, 9_999)
    assert delta is not None
    assert len(delta.append.nodes) == 1
    monkeypatch.setattr(wire, "partial_trace", lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(MessageTooLargeError, match=r"nodes\[1\].*split it over several nodes"):
        diff(trace, cursor, PLENTY, 9_999)

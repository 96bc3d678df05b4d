"""Which field is named when something is too large."""

from __future__ import annotations

import pytest

from env_worker.delta.limits import largest_field
from env_worker.domain import (
    Call,
    CallAdded,
    Change,
    EpisodeError,
    ErrorAdded,
    InfoSet,
    Message,
    Node,
    NodeAdded,
    OkSet,
    Pending,
    PendingSet,
    Reward,
    RewardSet,
    ToolCall,
    ToolsSet,
)

LARGE = "x" * 10_000


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

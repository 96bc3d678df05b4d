"""Small streams of deltas, written down by hand, for tests of what receives them."""

from __future__ import annotations

import numpy as np
from envtrio.v1.delta_pb2 import DeltaStream
from envtrio.v1.episode_pb2 import Node, Role


def tokens(*ids: int) -> bytes:
    """A token stream."""
    return np.array(ids, "<i4").tobytes()


def sampled_node(parent: int | None, count: int = 3) -> Node:
    """An assistant node of `count` sampled tokens."""
    node = Node(
        token_ids=tokens(*range(count)),
        mask=b"\1" * count,
        is_content=b"\1" * count,
        logprobs=np.linspace(-1.0, 0.0, count, dtype="<f4").tobytes(),
        sampled=True,
    )
    node.message.role = Role.ROLE_ASSISTANT
    node.message.content.add(text="answer")
    if parent is not None:
        node.parent = parent
    return node


def opening(trace_id: str = "t", *, discard: bool = False, tokens_given: int = 2) -> DeltaStream:
    """Opens a trace with one prompt node."""
    message = DeltaStream()
    delta = message.deltas.add(trace_id=trace_id, seq=0, discard=discard)
    delta.append.header.trace_id = trace_id
    delta.append.header.agent = "agent"
    delta.append.header.trainable = True
    node = delta.append.nodes.add(token_ids=tokens(*range(tokens_given)), mask=b"\0" * tokens_given)
    node.message.role = Role.ROLE_USER
    node.message.content.add(text="question")
    return message


def growth(seq: int, trace_id: str = "t", *, parent: int | None = None, count: int = 3) -> DeltaStream:
    """Adds a sampled node to an open trace."""
    message = DeltaStream()
    delta = message.deltas.add(trace_id=trace_id, seq=seq)
    delta.append.nodes.append(sampled_node(seq - 1 if parent is None else parent, count))
    call = delta.append.calls.add(node=seq, model="simulated", simulated=True)
    call.finish_reason = "stop"
    return message


def reply(*messages: DeltaStream, ok: bool = True) -> DeltaStream:
    """The reply that fits the messages (of one opening a trace)."""
    end = DeltaStream()
    end.reply.head.episode_id = "e" * 32
    end.reply.head.environment = "synthetic"
    end.reply.head.task_json = "{}"
    end.reply.head.ok = ok
    deltas = [delta for message in messages for delta in message.deltas]
    for trace_id in dict.fromkeys(delta.trace_id for delta in deltas):
        mine = [delta for delta in deltas if delta.trace_id == trace_id]
        end.reply.traces.add(
            trace_id=trace_id,
            deltas=len(mine),
            nodes=sum(len(delta.append.nodes) for delta in mine),
            calls=sum(len(delta.append.calls) for delta in mine),
            errors=sum(len(delta.append.errors) for delta in mine),
            links=sum(len(delta.append.links) for delta in mine),
            rewards=len({name for delta in mine for name in delta.append.rewards}),
            metrics=len({name for delta in mine for name in delta.append.metrics}),
            info_entries=len({name for delta in mine for name in delta.append.info_json}),
            tokens=sum(len(node.token_ids) // 4 for delta in mine for node in delta.append.nodes),
        )
    return end


def episode_stream(turns: int = 2, *, count: int = 3, reward: float | None = 1.0) -> list[DeltaStream]:
    """A whole stream: an opening, `turns` sampled nodes of `count` tokens, the reply."""
    messages = [opening(), *(growth(seq, count=count) for seq in range(1, turns + 1))]
    last = messages[-1].deltas[-1].append
    if reward is not None:
        last.rewards["score"].value = reward
        last.rewards["score"].weight = 1.0
    last.info_json["note"] = '{"n": 1}'
    last.ok = True
    return [*messages, reply(*messages)]

"""Test vectors: streams and the episodes that they assemble to, for readers in any language.

`python -m tests.vectors.generate` writes them beside this file. `NAME.stream-N.binpb` are the messages of a
stream in order (envtrio.v1.DeltaStream), `NAME.episode.binpb` what they assemble to (envtrio.v1.Episode),
each serialized deterministically, with a readable twin in text format. Wall-clock times are fixed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from envtrio.v1 import delta_pb2, episode_pb2
from google.protobuf import text_format

from env_worker import wire
from env_worker.delta.streamer import DeltaStreamer
from env_worker.domain import (
    Call,
    Episode,
    EpisodeError,
    ImagePart,
    JsonPart,
    Link,
    Message,
    TextPart,
    ToolCall,
    WeightVersionSpan,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message as ProtoMessage

FOLDER = Path(__file__).parent
_EPOCH = 1_700_000_000


def tiny() -> list[bytes]:
    """One trace, one turn, in one message with its reply."""
    episode = _episode()
    trace = episode.new_trace(model="simulated")
    root = trace.add_node(Message.user("2 + 2?"), [1, 10, 11, 2], is_content=[0, 1, 1, 0])
    answer = trace.add_node(
        Message.assistant("4"), [12, 2], parent=root, sampled=True, logprobs=[-0.5, -0.25]
    )
    trace.add_call(
        Call(
            answer,
            "simulated",
            started_at=_EPOCH,
            duration_seconds=0.5,
            prompt_tokens=4,
            completion_tokens=2,
            finish_reason="stop",
            simulated=True,
        )
    )
    trace.set_reward("correct", 1.0)
    trace.set_stop("done")
    return _finished(episode, DeltaStreamer(episode))


def branching() -> list[bytes]:
    """Branches, links, tools, a retried attempt, a rewritten history, previews, in several messages."""
    episode = _episode()
    streamer = DeltaStreamer(episode)
    messages: list[bytes] = []

    failed = episode.new_trace("solver", model="m")
    failed.add_node(Message.user("first attempt"), [1])
    messages += _written(streamer)
    episode.discard_trace(failed)

    solver = episode.new_trace("solver", model="m", trace_id="solver-retry")
    solver.set_tools('[{"type":"function","function":{"name":"search"}}]')
    root = solver.add_node(
        Message(
            "user",
            (
                TextPart("Was ist das? 日本 🎉"),
                ImagePart("data:image/png;base64,AA=="),
                JsonPart('{"type":"file","file":{"file_id":"f1"}}'),
            ),
        ),
        [1, 2, 3],
    )
    error = EpisodeError("TimeoutError", "no answer in 30 s", "turn 1", "Traceback ...", _EPOCH)
    solver.add_call(
        Call(None, "m", "http://engine/v1", "vllm-chat", _EPOCH, duration_seconds=30.0, error=error)
    )
    wish = solver.add_node(
        Message.assistant(
            "", reasoning="I look it up.", tool_calls=[ToolCall("call-1", "search", '{"q": "日本"}')]
        ),
        [4, 5],
        parent=root,
        sampled=True,
        mask=[False, True],
        logprobs=[-1.5],
    )
    solver.add_call(
        Call(
            wish,
            "m",
            "http://engine/v1",
            "vllm-chat",
            _EPOCH,
            duration_seconds=1.25,
            prompt_tokens=3,
            completion_tokens=1,
            cached_tokens=0,
            finish_reason="tool_calls",
            attempt=2,
            weight_versions=(WeightVersionSpan("step-7", 0, 1),),
        )
    )
    solver.set_pending([Message.tool("Japan", "call-1")], wish)
    solver.info["draft"] = True
    messages += _written(streamer)

    result = solver.add_node(Message.tool("Japan", "call-1", name="search"), [6], parent=wish)
    answer = solver.add_node(Message.assistant("Japan"), [7], parent=result, sampled=True, logprobs=[-0.125])
    other = solver.add_node(Message.user("rewritten history"), [], parent=root, tools_json="[]")
    solver.add_node(Message.assistant(""), [], parent=other, sampled=True)
    judge = episode.new_trace("judge", trainable=False, model="m")
    verdict = judge.add_node(Message.assistant("correct"), [9], sampled=True, logprobs=[0.0])
    solver.add_link(Link(answer, verdict, "judged-by", judge.id))
    solver.add_link(Link(wish, result, "tool-result"))
    judge.set_ok(True)
    solver.set_reward("judge", 0.5, weight=2.0)
    solver.set_reward("format", None)
    solver.set_metric("tool_calls", 1)
    messages += _written(streamer)

    judge.set_ok(False)
    solver.set_reward("judge", 1.0, weight=0.0)
    del solver.info["draft"]
    solver.rewrite_errors([error])
    solver.info["training_arrays"] = [{"key": "0", "tokens": 7}]
    solver.set_stop("done")
    return messages + _finished(episode, streamer)


def split() -> list[bytes]:
    """One trace whose growth is split at node borders, as if the target were 300 bytes."""
    episode = _episode()
    trace = episode.new_trace()
    parent: int | None = None
    for turn in range(6):
        size = 400 if turn == 2 else 40
        parent = trace.add_node(
            Message.user(f"turn {turn} " + "x" * size), list(range(turn * 4)), parent=parent
        )
    return _finished(episode, DeltaStreamer(episode, target_bytes=300))


VECTORS: dict[str, Callable[[], list[bytes]]] = {"tiny": tiny, "branching": branching, "split": split}


def build(name: str) -> dict[str, ProtoMessage]:
    """The messages of the vector `name`, by file name without suffix."""
    with mock.patch.multiple("time", time=lambda: float(_EPOCH), time_ns=lambda: _EPOCH * 1_000_000_000):
        stream = VECTORS[name]()
    files: dict[str, ProtoMessage] = {}
    traces: dict[str, episode_pb2.Trace] = {}
    reply = delta_pb2.RunReply()
    for number, data in enumerate(stream):
        message = files[f"{name}.stream-{number}"] = delta_pb2.DeltaStream.FromString(data)
        for delta in message.deltas:
            if delta.discard:
                del traces[delta.trace_id]
            if delta.HasField("append"):
                traces.setdefault(delta.trace_id, episode_pb2.Trace()).MergeFrom(delta.append)
        reply.MergeFrom(message.reply)
    order = [traces[counts.trace_id] for counts in reply.traces]
    files[f"{name}.episode"] = episode_pb2.Episode(head=reply.head, traces=order)
    return files


def to_text(message: ProtoMessage) -> str:
    """The readable twin."""
    body = text_format.MessageToString(message, as_utf8=True)
    return f"# proto-message: {message.DESCRIPTOR.full_name}\n\n{body}"


def main() -> None:
    """Write every vector anew."""
    for old in [*FOLDER.glob("*.binpb"), *FOLDER.glob("*.txtpb")]:
        old.unlink()
    for name in VECTORS:
        for stem, message in build(name).items():
            (FOLDER / f"{stem}.binpb").write_bytes(message.SerializeToString(deterministic=True))
            (FOLDER / f"{stem}.txtpb").write_text(to_text(message), encoding="utf-8")


def _episode() -> Episode:
    return Episode("0" * 32, "vectors", {}, request_id="1" * 32, group_id="group-1")


def _written(streamer: DeltaStreamer) -> list[bytes]:
    messages = []
    while (message := streamer.next_message()) is not None:
        messages.append(message)
        streamer.commit()
    return messages


def _finished(episode: Episode, streamer: DeltaStreamer) -> list[bytes]:
    episode.finish()
    head = wire.head(episode, task_json='{"seed": 1}', worker_instance="2" * 32, duration_seconds=1.5)
    return list(streamer.final_messages(head))


if __name__ == "__main__":
    main()

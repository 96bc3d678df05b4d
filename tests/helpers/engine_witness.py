"""What a scripted engine has seen and said, and what must have become of it at the client and the trainer."""

from __future__ import annotations

import json
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from env_client import ArraysIncompleteError, array_references, arrays
from env_worker import wire
from tests.engine import Reply, expected_heads, expected_logprobs, expected_mask, expected_routing
from tests.engine.replies import Script
from tests.helpers.engine_pool import WIDTH
from tests.helpers.kept_arrays import assert_equal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from envtrio.v1.episode_pb2 import Episode, Trace
    from numpy.typing import NDArray

    from env_client import ArrayClient
    from env_worker.domain import Message
    from tests.engine import Asked, Policy
    from tests.engine.tokens import Ids

FIELDS = ("routed_experts", "sampling_mask", "top_logprobs")


class Heard(NamedTuple):
    """One answer of an engine: int32 both."""

    prompt: Ids
    sampled: Ids

    @property
    def ids(self) -> Ids:
        """Prompt and answer."""
        return np.concatenate([self.prompt, self.sampled])


class Witness:
    """A policy that notes what it answers, in `heard`. `replies` are in the order of the requests, or are a
    policy."""

    def __init__(self, replies: Policy | Sequence[str | Reply]) -> None:
        self.heard: list[Heard] = []
        self._reply = replies if callable(replies) else Script(replies)

    def __call__(self, asked: Asked) -> Reply:
        said = self._reply(asked)
        reply = Reply(said) if isinstance(said, str) else said
        body: dict[str, Any] = {**asked.body, **(asked.body.get("sampling_params") or {})}
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        self.heard.append(Heard(asked.prompt_ids, reply.sampled()[:most]))
        return reply


def only_trace(episode: Episode) -> Trace:
    """That of an episode with one."""
    [trace] = episode.traces
    return trace


def info_of(trace: Trace, key: str) -> Any:
    """What the trace's info has at `key`; None where it has nothing."""
    return json.loads(trace.info_json[key]) if key in trace.info_json else None


def answers_of(trace: Trace) -> list[int]:
    """Indices of the nodes that a model has made."""
    return [index for index, node in enumerate(trace.nodes) if node.sampled]


def assert_messages(trace: Trace, path: Sequence[int], messages: Sequence[Message]) -> None:
    """The branch is these messages, and nothing of them was changed on their way."""
    assert [trace.nodes[index].message for index in path] == list(map(wire.message, messages))


def assert_tokens(trace: Trace, heard: Sequence[Heard]) -> None:
    """Each answer's branch is what the engine saw and sampled, in the order of the answers, with the
    log-probabilities of what was sampled."""
    answers = answers_of(trace)
    assert len(answers) == len(heard)
    for node, turn in zip(answers, heard, strict=True):
        own = trace.nodes[node]
        assert np.array_equal(arrays.branch_token_ids(trace, node), turn.ids)
        assert np.array_equal(arrays.token_ids(own)[arrays.mask(own)], turn.sampled)
        assert not arrays.mask(own)[: len(arrays.mask(own)) - len(turn.sampled)].any()
        logprobs = arrays.logprobs(own)
        assert logprobs is not None
        assert np.array_equal(logprobs, expected_logprobs(len(turn.sampled)).astype(np.float32))


def expected_arrays(trace: Trace, path: Sequence[int], heard: Sequence[Heard]) -> dict[str, NDArray[Any]]:
    """A branch's arrays, whole: a row for each position, the last one's a copy of the row before; masks and
    heads of what was sampled on it."""
    of_node = dict(zip(answers_of(trace), heard, strict=True))
    turns = [of_node[node] for node in path if node in of_node]
    positions = np.arange(len(turns[-1].ids))
    positions[-1] -= 1
    sampled = np.concatenate([turn.sampled for turn in turns])
    masks = [expected_mask(turn.sampled) for turn in turns]
    heads = [expected_heads(turn.sampled, WIDTH) for turn in turns]
    return {
        "routed_experts": expected_routing(positions),
        "sampling_mask.ids": np.concatenate([mask.ids for mask in masks]),
        "sampling_mask.counts": np.concatenate([mask.counts for mask in masks]),
        "top_logprobs.ids": np.concatenate([head.ids.ravel() for head in heads]),
        "top_logprobs.logprobs": np.concatenate([head.logprobs.ravel() for head in heads]).astype(np.float32),
        "top_logprobs.counts": np.full(len(sampled), WIDTH, np.int32),
    }


async def assert_arrays(
    trainer: ArrayClient,
    trace: Trace,
    heard: Sequence[Heard],
    lacking: Collection[str] = (),
    *,
    branch_lacks: Mapping[int, Collection[str]] = MappingProxyType({}),
) -> None:
    """What a trainer fetches of each branch is what the engine gave, byte for byte; the fields of `lacking`,
    and those of `branch_lacks` on the branch of that number, are incomplete, with the same reason in the
    reference and in the trace's info."""
    noted = info_of(trace, "incomplete") or {}
    assert set(FIELDS) & set(noted) == {*lacking, *chain.from_iterable(branch_lacks.values())}
    references, branches = array_references(trace), arrays.branches(trace)
    assert len(references) == len(branches)
    for number, (reference, path) in enumerate(zip(references, branches, strict=True)):
        assert reference["branch"] == path[-1]
        missing = {*lacking, *branch_lacks.get(number, ())}
        incomplete = reference.get("incomplete", {})
        assert set(incomplete) == missing, (number, incomplete)
        for field in missing:
            # A reference has little room, so that long reasons are cut there.
            assert noted[field]["reason"][:60] in incomplete[field]
        whole = expected_arrays(trace, path, heard)
        kept = {name: whole[name] for name in whole if name.partition(".")[0] not in missing}
        if kept:
            assert_equal(await trainer.fetch(reference), kept)
        for field in missing:
            with pytest.raises(ArraysIncompleteError) as refused:
                await trainer.fetch(reference, [field])
            assert refused.value.metadata["hole"] == incomplete[field]

"""Environments with unusual arrays: routing of any size that takes no memory itself, and one with a hole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from env_worker.domain import Message, SamplingMask, TopLogprobs

if TYPE_CHECKING:
    from env_worker.envs.base import Context

LAYERS = 48
TOP_K = 8


class BroadEnvironment:
    """One node of task["gibibytes"] of routing. Served as "broad"."""

    name = "broad"

    async def run(self, context: Context) -> None:
        """Of the tokens only as many are streamed as the node must have."""
        rows = context.task["gibibytes"] * 2**30 // (LAYERS * TOP_K)
        row = (np.arange(LAYERS * TOP_K) % 251).astype(np.uint8).reshape(1, LAYERS, TOP_K)
        routing = np.broadcast_to(row, (rows, LAYERS, TOP_K))
        context.new_trace().add_node(Message.user("broad"), np.zeros(rows, np.int32), routed_experts=routing)


class HoleyEnvironment:
    """An answer without routing. Served as "holey"."""

    name = "holey"

    async def run(self, context: Context) -> None:
        """Two nodes; the second has the other two fields."""
        trace = context.new_trace()
        experts = np.ones((3, 2, 2), np.uint8)
        prompt = trace.add_node(Message.user("holey"), range(3), routed_experts=experts)
        counts = np.ones(2, np.int32)
        trace.add_node(
            Message.assistant("yes"),
            range(2),
            parent=prompt,
            sampled=True,
            sampling_mask=SamplingMask(counts, counts),
            top_logprobs=TopLogprobs(counts, np.zeros(2, np.float32), counts),
        )

"""An `EpisodeHook` that counts training arrays and keeps none: `--hook examples.counting_hook:hook`.

It shows where the arrays are: here, in the worker, and nowhere else. What it writes into `trace.info` travels
to the client with the episode, so the client can say how much it was spared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from env_worker import Episode
    from env_worker.domain.sampling import SamplingParams


class CountingHook:
    """Leaves each trace's array bytes in `trace.info["training_array_bytes"]`."""

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        for trace in episode.traces:
            trace.info["training_array_bytes"] = sum(node.array_bytes for node in trace.nodes)

    def discard(self, episode: Episode) -> None:
        """Nothing was taken, so there is nothing to free."""


hook = CountingHook()

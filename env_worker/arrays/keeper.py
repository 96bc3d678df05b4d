"""The hook that keeps training arrays for trainers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_worker.arrays.limits import ArrayLimits, LimitChoices
from env_worker.arrays.store import ArrayStore

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from env_worker.domain import Episode, SamplingParams


class ArrayKeeper:
    """An EpisodeHook that keeps `routed_experts`, `sampling_mask` and `top_logprobs` along every branch of
    every trainable trace, and leaves references in `trace.info["training_arrays"]`, one for each branch, by
    which trainers fetch them from this worker's TrainingArrayService.

    A hook of one's own may subclass or wrap it: what is served is the `array_store` of whatever hook has one.

    Args:
        memory_bytes: how much is kept in memory.
        spill_dir: folder for what does not fit there.
        spill_bytes: how much may be spilled. None: with a `spill_dir` of its own half of what is free in it.
        lease_seconds: arrays that nobody has fetched for so long are freed; 0: never.
        fields: which of `TRAINING_ARRAY_FIELDS` are kept.
        strict: whether `keep` raises for a field with a hole, so that its run fails.

    Each keeper has a budget of its own: where several follow each other in one worker, give them limits that
    together fit into it. What is None is the worker's setting (`--array-memory-bytes` and so on). ValueError
    naming a limit that makes no sense.
    """

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        spill_dir: str | os.PathLike[str] | None = None,
        spill_bytes: int | None = None,
        lease_seconds: float | None = None,
        fields: Sequence[str] | None = None,
        strict: bool | None = None,
    ) -> None:
        choices = LimitChoices(
            memory_bytes,
            None if spill_dir is None else Path(spill_dir),
            spill_bytes,
            lease_seconds,
            None if fields is None else tuple(fields),
            strict,
        )
        choices.over(ArrayLimits(0))  # what makes no sense is said now, and not when a worker comes
        self.array_store: Final = ArrayStore(choices=choices)
        """What is kept. A worker that serves it attaches it to itself."""

    @property
    def held_arrays(self) -> int:
        """Episodes that are being kept or of which something is held."""
        return self.array_store.held_arrays

    @property
    def held_array_bytes(self) -> int:
        """Bytes that are held, in memory and spilled."""
        return self.array_store.held_array_bytes

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        """Keep the episode's arrays, also where it is not ok; see `ArrayStore.keep`."""
        self.array_store.keep(episode)

    def discard(self, episode: Episode) -> None:
        """Free them: the episode was not delivered. Idempotent."""
        self.array_store.discard(episode.id)


def array_keeper() -> ArrayKeeper:
    """An ArrayKeeper with the worker's settings, for `--hook env_worker:array_keeper`."""
    return ArrayKeeper()

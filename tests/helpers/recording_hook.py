"""An EpisodeHook for worker processes that records its calls, and misbehaves where it is told to.

Name it `tests.helpers.recording_hook:RecordingHook`. It obeys the words in the environment variable
`ENVTRIO_TEST_HOOK`, for every run, and those in a run's group_id, for that run:

    gate=PATH         keep waits at this `Gate`
    slow=MILLISECONDS keep and discard take so long
    info=CHARACTERS   keep leaves a text of so many characters in each trace's info, under "kept"
    raise-in-keep     keep raises, after all of the above
    raise-in-discard  discard raises
"""

from __future__ import annotations

import os
import time
import zlib
from typing import TYPE_CHECKING

from tests.helpers.gate import pass_blocking
from tests.helpers.history import (
    DiscardBegan,
    DiscardRaised,
    DiscardReturned,
    KeepBegan,
    KeepRaised,
    KeepReturned,
)
from tests.helpers.history_pipe import HistoryWriter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from env_worker.domain import Episode, Node, SamplingParams

VARIABLE = "ENVTRIO_TEST_HOOK"


class HookAskedToFailError(RuntimeError):
    """What "raise-in-keep" and "raise-in-discard" raise."""


class RecordingHook:
    """Keeps nothing but the record."""

    def __init__(self) -> None:
        self._writer = HistoryWriter()

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        run = episode.request_id
        self._writer.note(
            KeepBegan,
            run,
            episode_id=episode.id,
            ok=episode.ok,
            array_bytes=episode.array_bytes,
            arrays_crc=crc_of_arrays(episode),
            nodes=sum(len(trace.nodes) for trace in episode.traces),
            pid=os.getpid(),
        )
        words = _words(episode)
        try:
            if gate := words.get("gate"):
                pass_blocking(gate)
            _take(words)
            if characters := words.get("info"):
                for trace in episode.traces:
                    trace.info["kept"] = "k" * int(characters)
            if "raise-in-keep" in words:
                raise HookAskedToFailError(f"keep of run {run[:8]} was asked to raise")
        except BaseException:
            self._writer.note(KeepRaised, run)
            raise
        self._writer.note(KeepReturned, run)

    def discard(self, episode: Episode) -> None:
        run = episode.request_id
        nodes = sum(len(trace.nodes) for trace in episode.traces)
        self._writer.note(DiscardBegan, run, episode_id=episode.id, nodes=nodes)
        words = _words(episode)
        _take(words)
        if "raise-in-discard" in words:
            self._writer.note(DiscardRaised, run)
            raise HookAskedToFailError(f"discard of run {run[:8]} was asked to raise")
        self._writer.note(DiscardReturned, run)


def crc_of_arrays(episode: Episode) -> int:
    """CRC-32 over the training arrays of all nodes, with their names, dtypes and shapes."""
    crc = 0
    for trace in episode.traces:
        for number, node in enumerate(trace.nodes):
            for name, array in _arrays(node):
                crc = zlib.crc32(f"{trace.id} {number} {name} {array.dtype.str} {array.shape}".encode(), crc)
                crc = zlib.crc32(array.tobytes(), crc)
    return crc


def _arrays(node: Node) -> list[tuple[str, npt.NDArray[np.generic]]]:
    found: list[tuple[str, npt.NDArray[np.generic]]] = []
    if node.routed_experts is not None:
        found.append(("routed_experts", node.routed_experts))
    if (mask := node.sampling_mask) is not None:
        found += [("mask.ids", mask.ids), ("mask.counts", mask.counts)]
    if (head := node.top_logprobs) is not None:
        found += [("head.ids", head.ids), ("head.logprobs", head.logprobs), ("head.counts", head.counts)]
    return found


def _take(words: dict[str, str]) -> None:
    time.sleep(float(words.get("slow", 0)) / 1000)


def _words(episode: Episode) -> dict[str, str]:
    words = f"{os.environ.get(VARIABLE, '')} {episode.group_id}".split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}

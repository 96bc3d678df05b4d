"""The hook, and what is left of it when its process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import env_worker
from env_worker.arrays.errors import ArraysNotFoundError
from env_worker.arrays.keeper import ArrayKeeper, array_keeper
from env_worker.arrays.limits import ArrayLimits, LimitChoices
from env_worker.domain import TRAINING_ARRAY_FIELDS, SamplingParams
from env_worker.hook import check_hook, load_hook
from tests.helpers.array_episodes import HOME, SMALL, body_of, expected_body, keys, new_episode, references
from tests.helpers.pools import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from env_worker.domain import Episode

WORKERS = ArrayLimits(2**20, None, 0, 3.0, ("routed_experts",), strict=True)


def attached(keeper: ArrayKeeper, limits: ArrayLimits = WORKERS) -> ArrayLimits:
    keeper.array_store.attach(HOME, limits)
    assert keeper.array_store.limits is not None
    return keeper.array_store.limits


def test_it_keeps_and_discards_as_a_hook() -> None:
    hook = env_worker.ArrayKeeper(strict=False, fields=TRAINING_ARRAY_FIELDS)
    check_hook(hook, "the keeper")
    attached(hook)
    episode = new_episode()
    hook.keep(episode, SamplingParams())
    [reference] = references(episode)
    assert (hook.held_arrays, hook.held_array_bytes) == (1, SMALL)
    assert body_of(hook.array_store, reference["key"]) == expected_body(episode, reference)
    late = episode.without_nodes()
    for _ in range(2):
        hook.discard(late)
    assert (hook.held_arrays, hook.held_array_bytes) == (0, 0)
    with pytest.raises(ArraysNotFoundError):
        hook.array_store.open(reference["key"], (), 0, None)


def test_it_is_loaded_by_its_name() -> None:
    hook = load_hook("env_worker:array_keeper")
    assert isinstance(hook, ArrayKeeper)
    assert hook is not load_hook("env_worker:array_keeper")
    assert attached(hook) == WORKERS
    assert attached(array_keeper()) == WORKERS


def test_what_it_was_given_wins_over_the_workers_settings(tmp_path: Path) -> None:
    keeper = ArrayKeeper(
        memory_bytes=0, spill_dir=str(tmp_path), spill_bytes=9, lease_seconds=0, fields=["top_logprobs"],
        strict=False,
    )  # fmt: skip
    assert attached(keeper) == ArrayLimits(0, tmp_path, 9, 0, ("top_logprobs",), strict=False)


def test_a_folder_of_its_own_gets_half_of_what_is_free(tmp_path: Path) -> None:
    limits = attached(ArrayKeeper(spill_dir=tmp_path))
    assert limits.spill_dir == tmp_path
    assert limits.spill_bytes > 0
    workers = ArrayLimits(1, tmp_path, 77)
    assert attached(ArrayKeeper(spill_dir=tmp_path), workers).spill_bytes == 77
    assert LimitChoices(spill_bytes=5).over(workers) == ArrayLimits(1, tmp_path, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_bytes": -1}, "memory_bytes is -1"),
        ({"spill_bytes": -1}, "spill_bytes is -1"),
        ({"spill_dir": "/no/such/folder"}, "/no/such/folder cannot be used"),
        ({"lease_seconds": -1.0}, "lease_seconds is -1.0"),
        ({"lease_seconds": float("nan")}, "lease_seconds is nan"),
        ({"fields": ()}, "fields is empty"),
        ({"fields": ["tokens"]}, "'tokens', which is none of routed_experts, sampling_mask, top_logprobs"),
        ({"fields": ["top_logprobs"] * 2}, "twice"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArrayKeeper(**arguments)  # type: ignore[arg-type]


def test_without_a_folder_nothing_is_spilled() -> None:
    assert ArrayLimits(1, None, 100).spill_capacity == 0


class Wrapper:
    """A hook of a user's own around it."""

    def __init__(self, keeper: ArrayKeeper) -> None:
        self._keeper = keeper
        self.array_store = keeper.array_store

    def keep(self, episode: Episode, sampling: SamplingParams) -> None:
        self._keeper.keep(episode, sampling)
        episode.traces[0].info["seen"] = True

    def discard(self, episode: Episode) -> None:
        self._keeper.discard(episode)


def test_it_can_be_wrapped() -> None:
    keeper = ArrayKeeper(strict=False)
    attached(keeper)
    hook, episode = Wrapper(keeper), new_episode()
    hook.keep(episode, SamplingParams())
    assert body_of(hook.array_store, keys(episode)[0])
    hook.discard(episode)
    assert keeper.held_arrays == 0


KEEPING = """
import sys
from env_worker import ArrayKeeper
from env_worker.arrays.limits import ArrayLimits
from env_worker.domain import SamplingParams
from tests.helpers.array_episodes import HOME, SMALL, new_episode, open_segments

before = open_segments()
keeper = ArrayKeeper(memory_bytes=SMALL, spill_dir=sys.argv[1], spill_bytes=2**20)
keeper.array_store.attach(HOME, ArrayLimits(0))
keeper.keep(new_episode(traces=3), SamplingParams())
stats = keeper.array_store.stats()
print(stats.held_memory_bytes, stats.held_spill_bytes, open_segments() - before, flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    shared_memory = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPING, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(SMALL), str(2 * SMALL), "3"]
        assert os.listdir(tmp_path) == []
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert os.listdir(tmp_path) == []
    left = set(os.listdir("/dev/shm")) - shared_memory
    assert not [name for name in left if "envtrio" in name]

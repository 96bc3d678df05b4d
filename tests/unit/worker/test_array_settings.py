"""How much of the training arrays a worker keeps: its settings, and what follows from the host."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from env_worker import array_limits as module
from env_worker.array_limits import array_limits, warn_of_unused
from env_worker.arrays.keeper import ArrayKeeper
from env_worker.arrays.limits import ArrayLimits
from env_worker.arrays.serving import ArrayServing
from env_worker.config import SettingsError, WorkerSettings, settings_table
from env_worker.domain import TRAINING_ARRAY_FIELDS
from env_worker.hook import BUILT_IN_HOOKS, HookLoadError, array_store, load_hook
from env_worker.memory import usable_memory_bytes
from tests.helpers.array_episodes import HOME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from env_worker.hook import EpisodeHook

GIB = 2**30


def test_without_settings_a_quarter_of_the_usable_memory_and_no_spilling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "usable_memory_bytes", lambda: 8 * GIB)
    limits, reasons = array_limits(WorkerSettings())
    assert (limits.memory_bytes, limits.spill_dir, limits.spill_bytes) == (2 * GIB, None, 0)
    assert (limits.lease_seconds, limits.fields, limits.strict) == (0.0, TRAINING_ARRAY_FIELDS, False)
    assert list(reasons) == ["memory_bytes"]
    assert f"may take {2 * GIB} bytes of memory: 1/4 of the {8 * GIB} bytes" in reasons["memory_bytes"]


def test_what_is_set_is_taken(tmp_path: Path) -> None:
    arguments = [
        *("--array-memory-bytes", "1000", "--array-spill-dir", str(tmp_path), "--array-spill-bytes", "2000"),
        *("--array-lease-seconds", "30", "--array-fields", "top_logprobs,routed_experts", "--array-strict"),
    ]
    limits, reasons = array_limits(WorkerSettings.from_arguments(arguments, {}))
    assert (limits.memory_bytes, limits.spill_dir, limits.spill_bytes) == (1000, tmp_path, 2000)
    assert (limits.lease_seconds, limits.fields) == (30.0, ("top_logprobs", "routed_experts"))
    assert limits.strict
    assert not reasons, "nothing had to be worked out"


def test_settings_come_from_variables_too() -> None:
    variables = {
        "ENV_WORKER_ARRAY_MEMORY_BYTES": "0",
        "ENV_WORKER_ARRAY_SPILL_DIR": "spill",
        "ENV_WORKER_ARRAY_FIELDS": "sampling_mask, sampling_mask",
        "ENV_WORKER_ARRAY_STRICT": "true",
        "ENV_WORKER_METRICS": "127.0.0.1:0",
    }
    settings = WorkerSettings.from_arguments([], variables)
    assert (settings.array_memory_bytes, settings.array_spill_dir) == (0, "spill")
    assert settings.array_fields == ("sampling_mask", "sampling_mask")
    assert (settings.array_strict, settings.metrics) == (True, "127.0.0.1:0")


def test_half_of_what_is_free_is_spilled_and_workers_of_one_host_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "usable_memory_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100})())
    limits, reasons = array_limits(WorkerSettings(array_spill_dir=str(tmp_path), array_workers=4))
    assert (limits.memory_bytes, limits.spill_bytes) == (GIB // 2, 12)
    assert f"may take 12 bytes of {tmp_path}" in reasons["spill_bytes"]
    assert all("shared by 4 workers" in reason for reason in reasons.values())


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_spill_folder_that_is_none_is_an_error_at_the_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.touch()
    with pytest.raises(SettingsError, match=f"--array-spill-dir is '{path}'.* cannot be used"):
        array_limits(WorkerSettings(array_spill_dir=str(path)))


def test_looking_at_a_spill_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    array_limits(WorkerSettings(array_spill_dir=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"array_memory_bytes": -1}, "--array-memory-bytes is -1, expected 0"),
        ({"array_memory_bytes": 0}, "there is no --array-spill-dir, so nothing could be kept"),
        ({"array_memory_bytes": 2**51}, "--array-memory-bytes is 2251799813685248"),
        ({"array_spill_bytes": 5}, "--array-spill-bytes is 5, but no --array-spill-dir"),
        ({"array_spill_dir": "x", "array_spill_bytes": -5}, "--array-spill-bytes is -5"),
        ({"array_lease_seconds": -1.0}, "--array-lease-seconds is -1"),
        ({"array_lease_seconds": float("nan")}, "--array-lease-seconds is nan"),
        ({"array_workers": 0}, "--array-workers is 0, expected 1"),
        ({"array_fields": ("logits",)}, "'logits'; choose of routed_experts, sampling_mask, top_logprobs"),
        ({"metrics": "9100"}, "--metrics is '9100', expected HOST:PORT"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_naming_flag_and_value(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError) as error:
        WorkerSettings(**changes)
    assert named in str(error.value)


REASONS = {"memory_bytes": "a quarter of the memory", "spill_bytes": "half of the folder"}


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        (lambda _: None, []),
        (lambda _: Plain(), []),
        (lambda _: ArrayKeeper(), ["memory_bytes", "spill_bytes"]),
        (lambda _: ArrayKeeper(memory_bytes=7), ["spill_bytes"]),
        (lambda path: ArrayKeeper(spill_dir=path, spill_bytes=20), ["memory_bytes"]),
    ],
)
async def test_how_limits_were_worked_out_is_said_where_a_hook_has_them(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    hook: Callable[[Path], EpisodeHook | None],
    told: list[str],
) -> None:
    (tmp_path / "own").mkdir()
    current = hook(tmp_path / "own")
    limits = ArrayLimits(2**20, tmp_path, 20)
    with caplog.at_level(logging.INFO, "env_worker.arrays.serving"):
        serving = ArrayServing(HOME, limits, lambda: current, REASONS)
        for _ in range(2):
            assert serving.offered is bool(told)
    await serving.close()
    assert [record.getMessage() for record in caplog.records] == [REASONS[name] for name in told]


# What a process may use.


def group(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize("limit", ["memory.max", "memory.high"])
def test_version_2_limits_of_its_group_and_of_those_above_hold(tmp_path: Path, limit: str) -> None:
    group(tmp_path / "groups/a/b", "memory.max", "9000\n")
    group(tmp_path / "groups/a", limit, "7000\n")
    group(tmp_path / "groups", "memory.max", "max\n")
    (tmp_path / "membership").write_text("0::/a/b\n")
    assert usable_memory_bytes(tmp_path / "groups", tmp_path / "membership") == 7000


def test_version_1_limits_hold_too(tmp_path: Path) -> None:
    group(tmp_path / "groups/memory/a/b", "memory.limit_in_bytes", "5000\n")
    group(tmp_path / "groups/memory", "memory.limit_in_bytes", f"{2**63 - 4096}\n")
    (tmp_path / "membership").write_text("4:memory:/a/b\n0::/\n")
    assert usable_memory_bytes(tmp_path / "groups", tmp_path / "membership") == 5000


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    group(tmp_path / "groups/memory", "memory.limit_in_bytes", "6000\n")
    (tmp_path / "membership").write_text("4:memory:/docker/0123\n")
    assert usable_memory_bytes(tmp_path / "groups", tmp_path / "membership") == 6000


def test_without_control_groups_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert usable_memory_bytes(tmp_path, tmp_path / "membership") == psutil.virtual_memory().total
    assert 0 < usable_memory_bytes() <= psutil.virtual_memory().total


# The hook by name.


@pytest.mark.parametrize("spec", ["array-keeper", "env_worker:array_keeper"])
def test_the_array_keeper_is_there_by_name(spec: str) -> None:
    hook = load_hook(spec)
    assert type(hook).__name__ == "ArrayKeeper"
    assert array_store(hook) is not None
    assert load_hook(spec) is not hook


def test_a_name_that_is_none_is_refused_with_those_that_there_are() -> None:
    assert list(BUILT_IN_HOOKS) == ["array-keeper"]
    with pytest.raises(HookLoadError, match=r"'array_keeper' is not of the form .* built in: array-keeper"):
        load_hook("array_keeper")


def test_an_attribute_of_that_name_that_is_no_store_is_none() -> None:
    class Hook:
        array_store = "a shelf"

    assert array_store(Hook()) is None  # type: ignore[arg-type]
    assert array_store(None) is None


class Plain:
    """A hook without an array_store."""

    def keep(self, *_: object) -> None: ...

    def discard(self, _: object) -> None: ...


def test_settings_that_no_hook_makes_use_of_are_named(caplog: pytest.LogCaptureFixture) -> None:
    settings = WorkerSettings(array_memory_bytes=7, array_strict=True, array_workers=2)
    warn_of_unused(settings, ArrayKeeper())
    warn_of_unused(WorkerSettings(array_workers=2), None)
    assert caplog.text == ""
    warn_of_unused(settings, None)
    warn_of_unused(settings, Plain())
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"--array-memory-bytes, --array-strict: no effect, as {why}; add --hook array-keeper, or give your "
        "hook the attribute array_store"
        for why in ("there is no hook", "the hook Plain has no ArrayStore")
    ]


def test_every_setting_for_arrays_is_known_to_the_warning() -> None:
    names = {row.name: row.default for row in settings_table() if row.name.startswith("array_")}
    del names["array_workers"]
    assert names == module._UNSET

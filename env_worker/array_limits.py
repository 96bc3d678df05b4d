"""How much of a worker's training arrays is kept, from its settings and from what the host has."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from env_worker.arrays.limits import ArrayLimits
from env_worker.arrays.segment import check_folder
from env_worker.domain import TRAINING_ARRAY_FIELDS
from env_worker.hook import array_store
from env_worker.memory import usable_memory_bytes
from env_worker.setting import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.config import WorkerSettings
    from env_worker.hook import EpisodeHook

logger = logging.getLogger(__name__)

MEMORY_SHARE: Final = 4
"""One part of so many of the usable memory, where no setting says how much."""
SPILL_SHARE: Final = 2
"""One part of so many of the folder's free space, likewise."""
_UNSET: Final = {
    "array_memory_bytes": None,
    "array_spill_dir": None,
    "array_spill_bytes": None,
    "array_lease_seconds": 0.0,
    "array_fields": (),
    "array_strict": False,
}
"""Settings of which nobody has made use. Not array_workers, which a broker says to all its workers."""


def array_limits(settings: WorkerSettings) -> tuple[ArrayLimits, Mapping[str, str]]:
    """The limits for what hooks leave to the worker; and of those that it has worked out itself, by their
    names, how.

    SettingsError if there is no such spill folder, or no file can be made in it.
    """
    memory_bytes, spill_bytes, folder = settings.array_memory_bytes, settings.array_spill_bytes, None
    reasons: dict[str, str] = {}
    if memory_bytes is None:
        usable = usable_memory_bytes()
        memory_bytes = usable // MEMORY_SHARE // settings.array_workers
        reasons["memory_bytes"] = (
            f"training arrays may take {memory_bytes} bytes of memory: 1/{MEMORY_SHARE} of the {usable} "
            f"bytes that this process may use{_shared(settings.array_workers)}; --array-memory-bytes sets "
            "another limit"
        )
    if settings.array_spill_dir is not None:
        folder = Path(settings.array_spill_dir).absolute()
        try:
            check_folder(folder)
        except ValueError as error:
            raise SettingsError(f"--array-spill-dir is {settings.array_spill_dir!r}: {error}") from error
        if spill_bytes is None:
            free = shutil.disk_usage(folder).free
            spill_bytes = free // SPILL_SHARE // settings.array_workers
            reasons["spill_bytes"] = (
                f"training arrays beyond that may take {spill_bytes} bytes of {folder}: 1/{SPILL_SHARE} of "
                f"the {free} bytes that are free there{_shared(settings.array_workers)}; --array-spill-bytes "
                "sets another limit"
            )
    limits = ArrayLimits(
        memory_bytes=memory_bytes,
        spill_dir=folder,
        spill_bytes=spill_bytes or 0,
        lease_seconds=settings.array_lease_seconds,
        fields=tuple(dict.fromkeys(settings.array_fields)) or TRAINING_ARRAY_FIELDS,
        strict=settings.array_strict,
    )
    return limits, reasons


def warn_of_unused(settings: WorkerSettings, hook: EpisodeHook | None) -> None:
    """Log it if settings for training arrays were given, and `hook` keeps none that they are for."""
    given = [name for name, default in _UNSET.items() if getattr(settings, name) != default]
    if not given:
        return
    try:
        if array_store(hook) is not None:
            return
    except Exception:  # the user's code; it is said where the store is adopted
        return
    logger.warning(
        "%s: no effect, as %s; add --hook array-keeper, or give your hook the attribute array_store",
        ", ".join("--" + name.replace("_", "-") for name in given),
        "there is no hook" if hook is None else f"the hook {type(hook).__name__} has no ArrayStore",
    )


def _shared(workers: int) -> str:
    return "" if workers == 1 else f", shared by {workers} workers"

"""What an array store may hold, and whose it is."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from env_worker.domain import TRAINING_ARRAY_FIELDS

if TYPE_CHECKING:
    from pathlib import Path


class Home(NamedTuple):
    """The worker that arrays are fetched from, as references name it."""

    instance: str
    """32 hexadecimal digits, new with each process."""
    address: str
    """HOST:PORT at which trainers reach it."""


@dataclass(frozen=True, slots=True)
class ArrayLimits:
    """How much is kept, where, how long, and of what. ValueError naming the limit that makes no sense."""

    memory_bytes: int
    """In memory, headers and rounding to whole pages included. 0: everything is spilled."""
    spill_dir: Path | None = None
    """Folder for what does not fit into memory; None: nothing is spilled. It never shows a file in it."""
    spill_bytes: int = 0
    """In that folder."""
    lease_seconds: float = 0.0
    """Arrays that nobody has fetched for so long are freed; 0: never."""
    fields: tuple[str, ...] = TRAINING_ARRAY_FIELDS
    """Of `TRAINING_ARRAY_FIELDS`; the others are not kept."""
    strict: bool = False
    """Whether an episode with a hole in one of the fields is refused as a whole."""

    def __post_init__(self) -> None:
        for name, value in (("memory_bytes", self.memory_bytes), ("spill_bytes", self.spill_bytes)):
            if value < 0:
                raise ValueError(f"{name} is {value}, expected 0 or more bytes")
        if not (math.isfinite(self.lease_seconds) and self.lease_seconds >= 0):
            raise ValueError(f"lease_seconds is {self.lease_seconds}, expected 0 (off) or more seconds")
        known = ", ".join(TRAINING_ARRAY_FIELDS)
        if not self.fields:
            raise ValueError(f"fields is empty, so that nothing would be kept; name some of {known}")
        for field in self.fields:
            if field not in TRAINING_ARRAY_FIELDS:
                raise ValueError(f"fields names {field!r}, which is none of {known}")
        if len(set(self.fields)) < len(self.fields):
            raise ValueError(f"fields names one of {', '.join(self.fields)} twice; name it once")

    @property
    def spill_capacity(self) -> int:
        """Bytes that may be spilled: none without a folder."""
        return 0 if self.spill_dir is None else self.spill_bytes


@dataclass(frozen=True, slots=True)
class LimitChoices:
    """Limits that whoever made the store has chosen; None leaves one to the worker."""

    memory_bytes: int | None = None
    spill_dir: Path | None = None
    spill_bytes: int | None = None
    lease_seconds: float | None = None
    fields: tuple[str, ...] | None = None
    strict: bool | None = None

    def over(self, limits: ArrayLimits) -> ArrayLimits:
        """`limits`, the worker's, with what was chosen in their place.

        A chosen folder without a chosen size gets half of what is free in it, unless it is the worker's own.
        ValueError as ArrayLimits, and if that cannot be read.
        """
        names = ("memory_bytes", "spill_dir", "spill_bytes", "lease_seconds", "fields", "strict")
        chosen = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.spill_dir is not None and self.spill_bytes is None and self.spill_dir != limits.spill_dir:
            try:
                chosen["spill_bytes"] = shutil.disk_usage(self.spill_dir).free // 2
            except OSError as error:
                raise ValueError(
                    f"the spill folder {self.spill_dir} cannot be used: {error.strerror}; make it first"
                ) from error
        return replace(limits, **chosen)

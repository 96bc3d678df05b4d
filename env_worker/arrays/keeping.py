"""How an episode's arrays are kept: all of them, or nothing."""

from __future__ import annotations

import errno
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from env_worker.arrays.errors import ArraysIncompleteError
from env_worker.arrays.layout import TraceLayout
from env_worker.arrays.reference import make_reference
from env_worker.arrays.segment import rounded, write_segment
from env_worker.arrays.table import KeptBranch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from env_worker.arrays.holdings import ArrayHoldings
    from env_worker.arrays.limits import ArrayLimits, Home
    from env_worker.arrays.segment import Segment
    from env_worker.arrays.spares import Spares
    from env_worker.arrays.table import KeptEpisode, KeptTrace
    from env_worker.domain import Episode, JsonValue

INFO_KEY: Final = "training_arrays"
"""Under it `trace.info` has a list of references, one for each branch."""

_NAME_BYTES: Final = 16
_DISK_STEP: Final = "free some room in the spill folder, or lower --array-spill-bytes"
_NEXT_STEPS: Final[Mapping[int | None, str]] = {
    errno.ENOSPC: _DISK_STEP,
    errno.EDQUOT: _DISK_STEP,
    errno.ENOMEM: "lower --array-memory-bytes, or give the worker more memory",
    errno.EMFILE: "release arrays that were fetched, or raise the limit of open files (ulimit -n)",
    errno.ENFILE: "release arrays that were fetched, or raise the host's limit of open files (fs.file-max)",
}


def keep_episode(
    episode: Episode, holdings: ArrayHoldings, spares: Spares, home: Home, limits: ArrayLimits
) -> KeptEpisode:
    """Keep the arrays of every trainable trace, and write the references to its branches into its info.

    If it raises, nothing is held: see `ArrayStore.keep`.
    """
    laid = [(trace, TraceLayout.of(trace, limits.fields)) for trace in episode.traces if trace.trainable]
    if limits.strict:
        for trace, layout in laid:
            _refuse_holes(trace.id, layout)
    # A trace without branches takes no room: there is nothing that could be released.
    sizes = [rounded(layout.size) for _, layout in laid if layout.branches]
    kept = holdings.begin(episode.id, episode.owner, sizes)
    rooms = tuple(kept.traces)
    written: set[KeptTrace] = set()
    try:
        branches: dict[str, KeptBranch] = {}
        references: list[list[JsonValue]] = []
        free_rooms = iter(rooms)
        names = _names(len(rooms) + sum(len(layout.branches) for _, layout in laid))
        for trace, layout in laid:
            named = {next(names): branch for branch in layout.branches}
            if named:
                room = next(free_rooms)
                room.segment = _written(layout, room, next(names), holdings, spares, home, limits)
                written.add(room)
                room.keys.update(named)
                branches.update((key, KeptBranch(room, branch)) for key, branch in named.items())
            references.append([
                make_reference(
                    branch, instance=home.instance, address=home.address, key=key, trace_id=trace.id
                )
                for key, branch in named.items()
            ])  # fmt: skip
        for (trace, _), made in zip(laid, references, strict=True):
            trace.info[INFO_KEY] = made
        holdings.kept(kept, branches, (field for _, layout in laid for field in layout.incomplete))
    except BaseException:
        for room in rooms:
            if room in written:
                room.segment.drop()
            else:
                holdings.gone(room)
        holdings.failed(kept)
        raise
    return kept


def _refuse_holes(trace_id: str, layout: TraceLayout) -> None:
    for field, hole in layout.incomplete.items():
        raise ArraysIncompleteError(
            f"{field} of trace {trace_id!r} has a hole, and this worker keeps whole arrays only "
            f"(--array-strict): {hole}; have the engine give it, leave the field out of --array-fields, or "
            "mark the trace as not trainable"
        )


def _names(count: int) -> Iterator[str]:
    """So many keys and ids that nobody guesses, of one system call: in each the interpreter is let go of."""
    digits = secrets.token_hex(_NAME_BYTES * count)
    return (digits[at : at + 2 * _NAME_BYTES] for at in range(0, len(digits), 2 * _NAME_BYTES))


def _written(
    layout: TraceLayout,
    room: KeptTrace,
    id: str,
    holdings: ArrayHoldings,
    spares: Spares,
    home: Home,
    limits: ArrayLimits,
) -> Segment:
    try:
        return write_segment(
            layout.size,
            layout.write,
            is_intact=layout.is_intact,
            instance=home.instance,
            id=id,
            folder=limits.spill_dir if room.medium == "spill" else None,
            spares=spares,
            on_gone=partial(holdings.gone, room),
        )
    except OSError as error:
        where = "memory" if room.medium == "memory" else f"the spill folder {limits.spill_dir}"
        step = _NEXT_STEPS.get(error.errno, "see that it is there and can be written to")
        raise OSError(
            error.errno,
            f"training arrays of {layout.size} bytes cannot be written to {where}: {error.strerror}; {step}",
        ) from error

"""What happened, as small frozen records in order: what the oracle judges.

A record's `seq` is a reading of the host's monotonic clock in nanoseconds, so that the records of a test and
of the hooks in its worker processes merge into one order. As JSON lines they cross from process to process.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Record:
    """One event of the run `run` (its request_id; empty for what concerns all runs). `seq` orders all
    records, of every process."""

    seq: int
    run: str


@dataclass(frozen=True, slots=True)
class Asked(Record):
    """A caller sent the run."""


@dataclass(frozen=True, slots=True)
class Passed(Record):
    """One serialized DeltaStream went by at `hop`: "client" (received there) or "worker" (sent there)."""

    hop: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended(Record):
    """The caller saw the stream's status: a gRPC code's name, and ErrorInfo's reason or "".

    The code "KILLED" is that of a caller which did not live to see one.
    """

    code: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class CancelSent(Record):
    """A Cancel left."""


@dataclass(frozen=True, slots=True)
class CancelAnswered(Record):
    """A Cancel was answered: CancelOutcome without its prefix, or the name of a gRPC code that is not OK.

    "ABORTED WORKER_LOST" and "TOO_LATE WORKER_LOST" are a broker's answers for a worker that is away.
    """

    outcome: str


@dataclass(frozen=True, slots=True)
class ConfirmSent(Record):
    """A confirmation left."""


@dataclass(frozen=True, slots=True)
class ConfirmAnswered(Record):
    """A confirmation was answered: ConfirmOutcome without its prefix."""

    outcome: str


@dataclass(frozen=True, slots=True)
class SessionLost(Record):
    """Within the window, the session of the run went without a goodbye, for longer than its grace."""


@dataclass(frozen=True, slots=True)
class Returned(Record):
    """A client that confirms gave the episode to its caller."""


@dataclass(frozen=True, slots=True)
class Uncertain(Record):
    """A client that confirms gave the episode to its caller, and said that nobody knows whether that is
    final."""


@dataclass(frozen=True, slots=True)
class WorkerDied(Record):
    """The worker process `pid` was killed: what it kept has died with it. Concerns all its runs."""

    pid: int


@dataclass(frozen=True, slots=True)
class BrokerDied(Record):
    """The broker was killed: it cancels nothing any more for sessions that it saw. Concerns all runs."""


@dataclass(frozen=True, slots=True)
class EnvironmentBegan(Record):
    """The environment was called, in the process `pid`."""

    pid: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentEnded(Record):
    """The environment came to its end: "returned", "cancelled" or "raised"."""

    how: str


@dataclass(frozen=True, slots=True)
class KeepBegan(Record):
    """`EpisodeHook.keep` was called with this episode, in the process `pid`; `arrays_crc` is what
    `crc_of_arrays` says of it."""

    episode_id: str
    ok: bool = True
    array_bytes: int = 0
    arrays_crc: int = 0
    nodes: int = 0
    pid: int = 0


@dataclass(frozen=True, slots=True)
class KeepReturned(Record):
    """`keep` returned."""


@dataclass(frozen=True, slots=True)
class KeepRaised(Record):
    """`keep` raised."""


@dataclass(frozen=True, slots=True)
class DiscardBegan(Record):
    """`EpisodeHook.discard` was called with this episode, which still had so many nodes."""

    episode_id: str
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class DiscardReturned(Record):
    """`discard` returned."""


@dataclass(frozen=True, slots=True)
class DiscardRaised(Record):
    """`discard` raised."""


_KINDS = {kind.__name__: kind for kind in Record.__subclasses__()}
R = TypeVar("R", bound=Record)


class History:
    """Records in order, with the questions that the oracle asks."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._by_run: dict[str, list[Record]] = {}
        self._last = 0
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[Record]:
        """In order of `seq`."""
        return iter(sorted((r for records in self._by_run.values() for r in records), key=_seq))

    def __len__(self) -> int:
        return sum(map(len, self._by_run.values()))

    def add(self, record: Record) -> None:
        """Take a record as it is, for example one of another process."""
        self._by_run.setdefault(record.run, []).append(record)

    def note(self, kind: type[R], run: str, **fields: Any) -> R:
        """Record that `kind` happened to `run` now."""
        self._last = max(self._last + 1, time.monotonic_ns())
        record = kind(self._last, run, **fields)
        self.add(record)
        return record

    def runs(self) -> list[str]:
        """The runs that occur, in the order in which they were added."""
        return [run for run in self._by_run if run]

    def of(self, run: str, *kinds: type[R]) -> list[R]:
        """The records of `run` of these kinds, in order."""
        records = [record for record in self._by_run.get(run, ()) if isinstance(record, kinds)]
        return sorted(records, key=_seq)

    def kept_died(self, run: str) -> bool:
        """Whether the worker that kept this run's episode was killed, and what it kept has died with it."""
        ends = {died.pid: died.seq for died in self.of("", WorkerDied)}
        return any(ends.get(kept.pid, 0) > kept.seq for kept in self.of(run, KeepBegan))

    def only(self, runs: Sequence[str]) -> History:
        """The part that is about these runs, or about all."""
        return History([record for run in ("", *runs) for record in self._by_run.get(run, ())])


def _seq(record: Record) -> int:
    return record.seq


def to_line(record: Record) -> bytes:
    """One JSON line. Shorter than a pipe's atomic write, unless it carries a message."""
    fields = dataclasses.asdict(record)
    for name, value in fields.items():
        if isinstance(value, bytes):
            fields[name] = {"base64": base64.b64encode(value).decode()}
    return json.dumps({"kind": type(record).__name__, **fields}).encode() + b"\n"


def from_line(line: bytes) -> Record:
    """The record of one JSON line. KeyError or TypeError if it is none."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = base64.b64decode(value["base64"])
    return kind(**fields)

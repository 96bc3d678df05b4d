"""Whether a worker takes a run: its places, its tables, and the room for the run's training arrays."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from envtrio.v1 import errors_pb2

from env_worker.arrays.errors import ArrayBudgetError
from env_worker.domain import EpisodeError
from env_worker.domain.runs import DuplicateRequestError, InvalidRequestIdError, TableFullError
from env_worker.endings import ending, full, hook_unusable
from env_worker.hook import array_store
from env_worker.slots import QueueFullError
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.arrays.store import ArrayStore, Reservation
    from env_worker.domain.ledger import Entry
    from env_worker.domain.runs import RunTable
    from env_worker.hook import EpisodeHook
    from env_worker.run import RunSpec
    from env_worker.slots import Place, Slots

FAULTS: Final = (
    InvalidRequestIdError, DuplicateRequestError, QueueFullError, TableFullError, ArrayBudgetError,
)  # fmt: skip
"""Why a table does not do what a caller asks. Nothing was changed."""
Fault: TypeAlias = (
    InvalidRequestIdError | DuplicateRequestError | QueueFullError | TableFullError | ArrayBudgetError
)


class Admitted(NamedTuple):
    """What a run holds from its admission on."""

    entry: Entry
    """Its line in the ledger."""
    place: Place
    """Its claim to be carried."""
    reservation: Reservation | None
    """Room for its training arrays in the store of the hook of its admission; None where that has none."""


class _NoRoom(NamedTuple):
    """The last run found no room in this hook's store."""

    hook: EpisodeHook
    store: ArrayStore
    taken: int
    """Bytes that were held or reserved then."""
    said: str


class Admission:
    """Lets runs in. Each decision is synchronous, and a run that is refused leaves nothing behind.

    Args:
        hook: gives the current hook.
        adopt: told of a hook before its store is used; raises where this worker cannot use it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        table: RunTable,
        slots: Slots,
        *,
        hook: Callable[[], EpisodeHook | None],
        adopt: Callable[[EpisodeHook], None],
        clock: Callable[[], float],
    ) -> None:
        self._table: Final = table
        self._slots: Final = slots
        self._hook: Final = hook
        self._adopt: Final = adopt
        self._clock: Final = clock
        self._no_room: _NoRoom | None = None
        self.without_room = 0
        """Runs that found no room for their training arrays."""

    @property
    def no_room(self) -> str:
        """For people: why the last run found no room for its training arrays; empty as soon as some of it
        was freed."""
        if self._no_room is None:
            return ""
        hook, store, taken, said = self._no_room
        if hook is not self._hook() or _taken(store) < taken:
            self._no_room = None
            return ""
        return f"array budget full: {said}"

    def admit(self, spec: RunSpec, size: int) -> Admitted:
        """Let a run in whose request has `size` bytes. Refusal if it is not, or its cancel came first."""
        with ExitStack() as undo:
            try:
                self._slots.check(size)
                reservation = self._reserve()
                if reservation is not None:
                    undo.callback(reservation.close)
                entry = self._table.admit(spec.request_id, spec.session_id, self._clock())
            except FAULTS as fault:
                raise refused(fault, spec.request_id) from fault
            if entry.settled:
                raise ending(entry)
            place = self._slots.enter(spec.priority, size)
            undo.pop_all()
        return Admitted(entry, place, reservation)

    def _reserve(self) -> Reservation | None:
        hook = self._hook()
        if hook is None:
            return None
        try:
            self._adopt(hook)
            store = array_store(hook)
        except Exception as error:  # the hook is the user's code
            raise hook_unusable(EpisodeError.from_exception(error)) from error
        if store is None:
            return None
        try:
            reservation = store.reserve()
        except ArrayBudgetError as error:
            self._no_room = _NoRoom(hook, store, _taken(store), str(error))
            self.without_room += 1
            raise
        self._no_room = None
        return reservation


def refused(fault: Fault, request_id: str) -> Refusal:
    """What the caller hears of it."""
    match fault:
        case InvalidRequestIdError():
            return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST_ID, str(fault), field="request_id")
        case DuplicateRequestError():
            return Refusal(
                errors_pb2.ERROR_REASON_DUPLICATE_REQUEST_ID, str(fault), request_id=request_id[:8]
            )
        case QueueFullError():
            return full(errors_pb2.ERROR_REASON_QUEUE_FULL, fault, value=fault.value, limit=fault.limit)
        case ArrayBudgetError():
            return full(errors_pb2.ERROR_REASON_ARRAY_BUDGET, fault, value=fault.value, limit=fault.limit)
        case TableFullError():
            return full(errors_pb2.ERROR_REASON_TABLE_FULL, fault)


def _taken(store: ArrayStore) -> int:
    """Bytes that are held or reserved."""
    stats = store.stats()
    return stats.held_bytes + stats.reserved_bytes

"""What a call for arrays ended with, as an exception, and whether it is of use to try it again."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from env_client.errors import (
    ArraysLostError,
    EnvError,
    FetchDeadlineError,
    QueueFullError,
    UnavailableError,
)
from env_client.statuses import env_error

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

_FIRST_DELAY_SECONDS: Final = 0.05
_MAX_DELAY_SECONDS: Final = 1.0
_QUEUE_FULL_SECONDS: Final = 1.0
MAX_RENEWALS: Final = 10


def call_error(error: grpc.RpcError, about: object) -> EnvError:
    """The exception for a call about some arrays.

    Args:
        error: what grpc raised.
        about: what the message begins with, e.g. a reference.
    """
    found = env_error(error)
    kind = type(found)
    if found.code == "DEADLINE_EXCEEDED":
        kind = FetchDeadlineError
    elif found.code == "CANCELLED" and not found.reason:
        kind = UnavailableError  # Not by us: by a server that leaves, or something between.
    return kind(
        f"{about}: {found}",
        code=found.code,
        reason=found.reason,
        metadata=found.metadata,
        retry_after=found.retry_after,
    )


class Retries:
    """When a call is tried again, and when no longer. It must be idempotent.

    Args:
        seconds: how long, from the first of the failures. They count anew once a call came further, but only
            `MAX_RENEWALS` times: what is cut off again and again never ends.
        refused_seconds: the same, where the failure is that nothing listens there.
        waits_in_queue: whether a busy server is waited for without that limit, as the call has its own.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        seconds: float,
        *,
        refused_seconds: float = math.inf,
        waits_in_queue: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._refused_seconds = min(seconds, refused_seconds)
        self._waits_in_queue = waits_in_queue
        self._clock = clock
        self._since: float | None = None
        self._delay = _FIRST_DELAY_SECONDS
        self._furthest = -1
        self._renewals = 0

    def delay(self, error: EnvError, reached: int = -1) -> float | None:
        """Seconds to wait before the next try; None: trying again is of no use.

        Args:
            error: how this try ended.
            reached: how far it had come.
        """
        if not isinstance(error, UnavailableError | QueueFullError):
            return None
        now = self._clock()
        is_further = reached > self._furthest and self._renewals < MAX_RENEWALS
        if self._since is None or is_further:
            self._renewals += self._since is not None
            self._since, self._delay = now, _FIRST_DELAY_SECONDS
        self._furthest = max(reached, self._furthest)
        until = self._since + (self._refused_seconds if is_refused(error) else self._seconds)
        is_queued = isinstance(error, QueueFullError)
        if now >= until and not (is_queued and self._waits_in_queue):
            return None
        if is_queued:
            return error.retry_after or _QUEUE_FULL_SECONDS
        delay, self._delay = self._delay, min(2 * self._delay, _MAX_DELAY_SECONDS)
        return min(delay, until - now)


def is_refused(error: EnvError) -> bool:
    """Whether the host answers and nothing listens there: whoever had that address is gone.

    Other ways of not being reached, such as silence, say nothing about the process.
    """
    # gRPC tells it in words only. A reason would be a server's, about somebody else.
    return isinstance(error, UnavailableError) and not error.reason and "Connection refused" in str(error)


def lost(error: EnvError, lost_seconds: float, *, was_lost: bool = False) -> EnvError:
    """What it means for arrays that a call to the worker that keeps them ended so in the end.

    Args:
        error: how it ended.
        lost_seconds: how long such a worker is tried.
        was_lost: whether that was done before, so that this was one quick try.
    """
    if isinstance(error, UnavailableError):
        tried = f"before for {lost_seconds:g} s, nor now" if was_lost else f"for {lost_seconds:g} s"
        return ArraysLostError(
            f"{error}; the worker could not be reached {tried}: if it is gone, so are its arrays: drop the "
            "episode",
            metadata=error.metadata,
        )
    if error.code == "UNIMPLEMENTED":
        return ArraysLostError(
            f"{error}; what answers there serves no training arrays: another process has that address now, "
            "or the worker's hook has no array_store",
            metadata=error.metadata,
        )
    return error

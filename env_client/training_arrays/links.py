"""Channels to the workers that keep arrays, one for each address, shared by all calls."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from envtrio.v1 import training_array_service_pb2
from envtrio.v1.training_array_service_pb2 import FetchRequest, ReleaseRequest, ReleaseResponse

from env_client.channels import open_sync_channel
from env_client.errors import FetchCancelledError
from env_client.training_arrays.hosts import dial_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

_SERVICE: Final = training_array_service_pb2.DESCRIPTOR.services_by_name["TrainingArrayService"].full_name
_HEALTH_METHOD: Final = "/grpc.health.v1.Health/Check"

_IDLE_SECONDS: Final = 60.0
"""A channel that nobody has used for so long is closed when the next one is opened or given back."""
_MAX_IDLE: Final = 64
"""A trainer may meet thousands of workers; of those it does not use now, so many stay connected."""


@dataclass(slots=True)
class ArrayLink:
    """A channel and its methods.

    The methods are made with the channel: making one on a channel that is closed ends the process. Fetch
    answers with bytes, so that pieces need not be copied out of messages, and so does Health, of which nobody
    wants to know more than that something answers.
    """

    channel: grpc.Channel
    fetch: Any
    release: Any
    health: Any
    users: int = 0
    idle_since: float = 0.0


class ArrayLinks:
    """All channels of one client, in one process. Thread-safe.

    Args:
        credentials: of TLS channels; None: in the clear.
        clock: monotonic seconds.
    """

    def __init__(
        self, credentials: grpc.ChannelCredentials | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._credentials = credentials
        self._clock = clock
        # Held while a channel is made, never while anything is waited for.
        self._lock = threading.Lock()
        self._links: dict[str, ArrayLink] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._links)

    @contextmanager
    def to(self, address: str) -> Iterator[ArrayLink]:
        """The link to "HOST:PORT"; it stays open while it is used.

        Raises:
            FetchCancelledError: the client was closed.
        """
        with self._lock:
            if self._is_closed:
                raise FetchCancelledError(f"a call to {address} was given up, as the client was closed")
            link = self._links.get(address)
            if link is None:
                link = self._links[address] = self._open(address)
            link.users += 1
            idle = self._take_idle()
        try:
            _close(idle)
            yield link
        finally:
            with self._lock:
                link.users -= 1
                link.idle_since = self._clock()
                idle = self._take_idle()
                if not link.users and self._links.get(address) is not link:
                    idle.append(link)  # It was renewed, or all was closed.
            _close(idle)

    def renew(self, address: str) -> None:
        """Have the next call connect anew, and at once: a channel that could not makes a pause first."""
        with self._lock:
            link = self._links.pop(address, None)
            idle = [link] if link is not None and not link.users else []
        _close(idle)

    def close(self) -> None:
        """Close all, those that are used when their last user is done."""
        with self._lock:
            self._is_closed = True
            idle = [link for link in self._links.values() if not link.users]
            self._links.clear()
        _close(idle)

    def _open(self, address: str) -> ArrayLink:
        channel = open_sync_channel(dial_target(address), self._credentials)
        return ArrayLink(
            channel,
            fetch=channel.unary_stream(f"/{_SERVICE}/Fetch", FetchRequest.SerializeToString, None),
            release=channel.unary_unary(
                f"/{_SERVICE}/Release", ReleaseRequest.SerializeToString, ReleaseResponse.FromString
            ),
            health=channel.unary_unary(_HEALTH_METHOD, None, None),
        )

    def _take_idle(self) -> list[ArrayLink]:
        idle = [(link.idle_since, address) for address, link in self._links.items() if not link.users]
        idle.sort()
        too_many = len(idle) - _MAX_IDLE
        oldest = self._clock() - _IDLE_SECONDS
        return [
            self._links.pop(address)
            for index, (since, address) in enumerate(idle)
            if index < too_many or since < oldest
        ]


def _close(links: list[ArrayLink]) -> None:
    for link in links:
        link.channel.close()

"""Frees arrays at the workers that keep them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
from envtrio.v1.training_array_service_pb2 import ReleaseReferences, ReleaseRequest, ReleaseResponse

from env_client.errors import EnvError, FetchDeadlineError, UnavailableError, shown_id
from env_client.request import PROTOCOL_GENERATION
from env_client.training_arrays.status import Retries, call_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from env_client.training_arrays.bounds import CallBounds
    from env_client.training_arrays.links import ArrayLink, ArrayLinks
    from env_client.training_arrays.reference import ArrayReference

_LOG: Final = logging.getLogger(__name__)


class Group(NamedTuple):
    """Keys of one worker, each once."""

    address: str
    instance: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.keys)} references of worker {shown_id(self.instance)} at {self.address}"


def grouped(references: Iterable[ArrayReference]) -> list[Group]:
    """The references by worker."""
    keys: dict[tuple[str, str], dict[str, None]] = {}
    for reference in references:
        keys.setdefault((reference.address, reference.instance), {})[reference.key] = None
    return [Group(address, instance, tuple(found)) for (address, instance), found in keys.items()]


class ArrayReleaser:
    """Releases over the links of one client. Thread-safe.

    Args:
        links: the channels.
        lost_seconds: how long a worker that cannot be reached is tried again.
    """

    def __init__(self, links: ArrayLinks, lost_seconds: float) -> None:
        self._links = links
        self._lost_seconds = lost_seconds

    def references(self, group: Group, bounds: CallBounds) -> int:
        """How many were freed now. Of a worker that is gone there is nothing left to free.

        Raises:
            FetchDeadlineError: the worker is there, but did not answer in time.
            EnvError: it refused.
        """
        target = ReleaseReferences(instance=group.instance, keys=group.keys)
        request = ReleaseRequest(protocol_generation=PROTOCOL_GENERATION, references=target)
        try:
            return self._release(group.address, request, bounds, group).released
        except EnvError as error:
            # What serves no arrays there is another process than the one that kept them.
            if not isinstance(error, UnavailableError) and error.code != "UNIMPLEMENTED":
                raise
            _LOG.warning("nothing to release any more: %s", error)
            return 0

    def owner(self, address: str, owner: str, bounds: CallBounds) -> int:
        """How many were freed now.

        Raises:
            UnavailableError: the worker could not be reached; if it is gone, so are its arrays.
            FetchDeadlineError: the worker is there, but did not answer in time.
            EnvError: it refused; with the code UNIMPLEMENTED it keeps no arrays.
        """
        request = ReleaseRequest(protocol_generation=PROTOCOL_GENERATION, owner=owner)
        return self._release(address, request, bounds, f"arrays of owner {owner!r} at {address}").released

    def _release(
        self, address: str, request: ReleaseRequest, bounds: CallBounds, about: object
    ) -> ReleaseResponse:
        retries = Retries(self._lost_seconds)
        unreachable: EnvError | None = None
        with self._links.to(address) as link:
            while True:
                try:
                    bounds.check(about)
                    return self._once(link, request, bounds, about)
                except UnavailableError as error:
                    unreachable = error
                    delay = retries.delay(error)
                    if delay is None:
                        raise
                except FetchDeadlineError:
                    if unreachable is None:
                        raise
                    raise unreachable from None
                bounds.wait(delay)

    def _once(
        self, link: ArrayLink, request: ReleaseRequest, bounds: CallBounds, about: object
    ) -> ReleaseResponse:
        with bounds.calling(link.release.future(request, timeout=bounds.seconds_left())) as call:
            # Not result() first: of a call that was cancelled it raises what is no RpcError.
            if call.code() is grpc.StatusCode.OK:
                response: ReleaseResponse = call.result()
                return response
            bounds.check(about)
            raise call_error(call, about)

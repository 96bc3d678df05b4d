"""Runs that were given up with a lost worker, held until that worker has heard of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class GivenUp:
    """instance -> request_ids, in the order in which they were given up.

    Args:
        limit: most instances; the one that was lost first is forgotten first, as a worker that does not come
            back within ten late-cancel windows has closed them by itself.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit: Final = limit
        self._lists: OrderedDict[str, dict[str, None]] = OrderedDict()

    def add(self, instance: str, request_ids: Iterable[str]) -> None:
        """Hold these as well."""
        ids = dict.fromkeys(request_ids)
        if not ids:
            return
        self._lists.setdefault(instance, {}).update(ids)
        self._lists.move_to_end(instance)
        while len(self._lists) > self._limit:
            self._lists.popitem(last=False)

    def of(self, instance: str) -> list[str]:
        """What that worker has yet to acknowledge."""
        return list(self._lists.get(instance, ()))

    def forget(self, instance: str) -> None:
        """That worker's process has ended: it will acknowledge nothing."""
        self._lists.pop(instance, None)

    def acknowledge(self, instance: str, request_ids: Iterable[str]) -> None:
        """The worker has discarded these."""
        ids = self._lists.get(instance)
        if ids is None:
            return
        for request_id in request_ids:
            ids.pop(request_id, None)
        if not ids:
            del self._lists[instance]

"""References that are released together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from env_client.errors import shown_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from env_client.training_arrays.reference import ArrayReference

MAX_KEYS: Final = 100_000
"""Of one call: so many are 3.4 MB. Workers take no more."""


class Group(NamedTuple):
    """Keys of one worker, each once, `MAX_KEYS` at most."""

    address: str
    instance: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.keys)} references of worker {shown_id(self.instance)} at {self.address}"


def grouped(references: Iterable[ArrayReference]) -> list[Group]:
    """The references by worker; of one that has very many, several groups."""
    keys: dict[tuple[str, str], dict[str, None]] = {}
    for reference in references:
        keys.setdefault((reference.address, reference.instance), {})[reference.key] = None
    return [
        Group(address, instance, some)
        for (address, instance), found in keys.items()
        for some in _split(tuple(found))
    ]


def _split(keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(keys), MAX_KEYS):
        yield keys[start : start + MAX_KEYS]

"""What callers give to a client of training arrays, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from env_client.errors import EnvError, InvalidRequestError
from env_client.training_arrays.answer import Ask
from env_client.training_arrays.excerpt import excerpt, is_text
from env_client.training_arrays.groups import grouped
from env_client.training_arrays.hosts import AllowedHosts, checked_address
from env_client.training_arrays.reference import ArrayReference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from env_client.training_arrays.groups import Group
    from env_client.training_arrays.reference import Reference

Tokens: TypeAlias = "slice | Sequence[slice | None] | None"
"""Tokens of many references: of each the same slice, or one for each; None: all."""


class Arguments:
    """Checks for one client.

    Args:
        hosts: that may be called.
    """

    def __init__(self, hosts: AllowedHosts) -> None:
        self._hosts = hosts

    def ask(self, reference: Reference, fields: Collection[str] | None, tokens: slice | None) -> Ask:
        """What is to be fetched of one reference.

        Raises:
            EnvError: an argument is malformed, or asks for what is not there.
        """
        if isinstance(reference, list | tuple):
            raise _unfit("reference", reference, "one; use fetch_many(references) for several")
        checked = ArrayReference.of(reference)
        self._hosts.check([checked.address])
        asked = checked.fields(fields)
        start, end = checked.tokens_of(tokens)
        return Ask(checked, asked, start, end)

    def asks(
        self, references: Iterable[Reference], fields: Collection[str] | None, tokens: Tokens
    ) -> Iterator[Ask | EnvError]:
        """What is to be fetched of each reference, or what is wrong with that.

        Raises:
            InvalidRequestError: the arguments do not belong together.
        """
        listed = list_of(references, "fetch(reference)")
        names = fields if fields is None or isinstance(fields, str | bytes) else _names(fields)
        parts = [tokens] * len(listed) if tokens is None or isinstance(tokens, slice) else tokens
        if not isinstance(parts, Sequence) or len(parts) != len(listed):
            expected = f"a slice, or a list of one for each of the {len(listed)} references"
            raise _unfit("tokens", tokens, expected)
        return (self._tried(reference, names, part) for reference, part in zip(listed, parts, strict=True))

    def groups(self, references: Iterable[Reference]) -> list[Group]:
        """What is to be released, by worker.

        Raises:
            InvalidRequestError: a reference is malformed, or of a host that is not on the list.
        """
        checked = []
        for reference in references:
            if isinstance(reference, list | tuple):
                raise _unfit("reference", reference, "one each; use release(*references) for a list")
            checked.append(ArrayReference.of(reference))
        groups = grouped(checked)
        self._hosts.check({group.address for group in groups})
        return groups

    def owner(self, address: str, owner: str) -> None:
        """Whose arrays are to be released, and where.

        Raises:
            InvalidRequestError: an argument is malformed, or the host is not on the list.
        """
        checked_address(address, "address")
        self._hosts.check([address])
        if not isinstance(owner, str) or not owner or not is_text(owner):
            raise _unfit("owner", owner, "a text as it was given to the runs")

    def _tried(
        self, reference: Reference, fields: Collection[str] | None, tokens: slice | None
    ) -> Ask | EnvError:
        try:
            return self.ask(reference, fields, tokens)
        except EnvError as error:
            return error


def list_of(references: Iterable[Reference], of_one: str) -> list[Reference]:
    """The references.

    Args:
        of_one: what to call with one reference.

    Raises:
        InvalidRequestError: it is a single one, or nothing that can be gone through.
    """
    if isinstance(references, Mapping | str | bytes) or not isinstance(references, Iterable):
        raise _unfit("references", references, f"a list of them; use {of_one} for one")
    return list(references)


def _names(fields: Collection[str]) -> Collection[str]:
    # Once: it may be an iterator.
    return list(fields) if isinstance(fields, Iterable) else fields


def _unfit(name: str, value: object, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name}: found {excerpt(value)}, expected {expected}; mend the argument", metadata={"field": name}
    )

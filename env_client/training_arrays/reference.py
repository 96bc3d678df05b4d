"""References to training arrays: addresses that workers wrote, so each is checked before it is used."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from env_client.errors import ArraysIncompleteError, InvalidRequestError, TokenRangeError, shown_id
from env_client.training_arrays.excerpt import excerpt
from env_client.training_arrays.hosts import checked_address

if TYPE_CHECKING:
    from collections.abc import Collection

    from envtrio.v1.episode_pb2 import Trace

Reference: TypeAlias = "Mapping[str, Any] | str | bytes"
"""A reference as it stands in `trace.info_json["training_arrays"]`, or its JSON text."""

INFO_KEY: Final = "training_arrays"
ROUTED_EXPERTS: Final = "routed_experts"

_DTYPES: Final = {text: np.dtype(text) for text in ("u1", "<u2", "<i4", "<f4")}
_KEY: Final = re.compile(r"[0-9a-f]{32}")
_NAME: Final = re.compile(r"[a-z0-9_]{1,40}(\.[a-z0-9_]{1,40})?")
_MAX_NAMES: Final = 32
_MAX_REASON: Final = 500
# Bounds of what a worker may claim, far above what there is: whatever is claimed is allocated in the end.
_MAX_NUMBER: Final = 2**63 - 1
_MAX_TOKENS: Final = 2**32
_MAX_ROW: Final = 512 * 512
"""Experts of a token: layers times top_k."""
_MAX_IDS: Final = 2**20
"""Elements of any other array for each token."""
_NEXT_STEP: Final = "pass on what the worker wrote into trace.info_json['training_arrays']"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array: dtype little-endian, shape in C order."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array, a Python integer whatever the shape."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def field(self) -> str:
        """The field it belongs to, which is what a fetch asks for."""
        return self.name.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class ArrayReference:
    """One branch's arrays, and where they are.

    Attributes:
        instance: the worker's process.
        address: "HOST:PORT" of it.
        key: what frees and fetches them. A capability: show its first 8 digits only.
        tokens: of the branch.
        arrays: those of its complete fields, by name.
        incomplete: what the other fields lack, by field.
    """

    instance: str
    address: str
    key: str
    tokens: int
    arrays: Mapping[str, ArraySpec]
    incomplete: Mapping[str, str]

    @classmethod
    def of(cls, value: Reference | ArrayReference) -> ArrayReference:
        """A reference that was checked.

        Raises:
            InvalidRequestError: it is malformed; the message names what.
        """
        if isinstance(value, ArrayReference):
            return value
        found = _parsed(value, "a reference") if isinstance(value, str | bytes) else value
        if not isinstance(found, Mapping):
            raise _malformed("a reference", found, "a JSON object")
        tokens = _number(found.get("tokens"), "reference.tokens", _MAX_TOKENS)
        return cls(
            instance=_text(found, "instance", re.compile(r"[!-~]{1,256}"), "a worker's instance"),
            address=checked_address(found.get("address"), "reference.address"),
            key=_text(found, "key", _KEY, "32 lower-case hexadecimal digits"),
            tokens=tokens,
            arrays=_arrays(found.get("arrays"), tokens),
            incomplete=_incomplete(found.get("incomplete", {})),
        )

    def __str__(self) -> str:
        return f"arrays {shown_id(self.key)} of worker {shown_id(self.instance)} at {self.address}"

    def fields(self, names: Collection[str] | None) -> tuple[str, ...]:
        """The fields to ask for; none: all that are complete.

        Raises:
            InvalidRequestError: a name is unknown or stands there twice, or there is none.
            ArraysIncompleteError: a field has a hole.
        """
        if names is None:
            return ()
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise _malformed("fields", names, "a list of names, even of one")
        asked = tuple(names)
        known = {spec.field for spec in self.arrays.values()}
        for name in asked:
            if isinstance(name, str) and name in self.incomplete:
                hole = self.incomplete[name]
                raise ArraysIncompleteError(
                    f"{self}: {name} is incomplete: {hole}; a hole is never trained on: drop the episode, or "
                    f"fetch the other fields ({', '.join(sorted(known)) or 'there are none'})",
                    metadata={"field": name, "hole": hole},
                )
            if not isinstance(name, str) or name not in known:
                expected = f"one of {', '.join(sorted(known)) or 'none: every field is incomplete'}"
                raise _malformed("fields", name, expected)
        if not asked or len(set(asked)) < len(asked):
            raise _malformed("fields", asked, "each name once; leave it out for all complete fields")
        return asked

    def selected(self, fields: Collection[str]) -> dict[str, ArraySpec]:
        """The whole branch's arrays of these fields, by name; none: all."""
        return {name: spec for name, spec in self.arrays.items() if not fields or spec.field in fields}

    def tokens_of(self, tokens: slice | None) -> tuple[int, int]:
        """First token of a range and the one past its last. Negative bounds count from the branch's end.

        Raises:
            InvalidRequestError: it is no slice of step 1.
            TokenRangeError: it does not lie within the branch.
        """
        if tokens is None:
            return 0, self.tokens
        if not isinstance(tokens, slice):
            raise _malformed("tokens", tokens, "a slice such as slice(0, 1000)")
        try:
            *bounds, step = (
                None if bound is None else operator.index(bound)
                for bound in (tokens.start, tokens.stop, tokens.step)
            )
        except TypeError as error:
            raise _malformed("tokens", tokens, "a slice of integers") from error
        if step not in (None, 1):
            raise _malformed("tokens", tokens, "a slice without a step, such as slice(0, 1000)")
        start, end = (
            default if bound is None else bound + self.tokens if bound < 0 else bound
            for bound, default in zip(bounds, (0, self.tokens), strict=True)
        )
        if not 0 <= start <= end <= self.tokens:
            shown = ":".join("" if bound is None else excerpt(bound) for bound in bounds)
            raise TokenRangeError(
                f"{self}: the token range {shown} does not lie within its {self.tokens} tokens; ranges are "
                "not cut down to what there is: take the token count from the reference",
                metadata={"value": shown, "limit": str(self.tokens)},
            )
        return start, end


def references(trace: Trace) -> list[dict[str, Any]]:
    """The references that a hook such as `ArrayKeeper` left in a trace's info; empty where it left none.

    Raises:
        InvalidRequestError: what is there is no JSON list of objects.
    """
    text = trace.info_json.get(INFO_KEY)
    if text is None:
        return []
    found = _parsed(text, f"trace.info_json[{INFO_KEY!r}]")
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise _malformed(f"trace.info_json[{INFO_KEY!r}]", found, "a JSON list of objects")
    return found


def _arrays(value: object, tokens: int) -> dict[str, ArraySpec]:
    specs = {}
    for name, entry in _named(value, "reference.arrays").items():
        label = f"reference.arrays[{name!r}]"
        dtype = entry.get("dtype") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(dtype, str) or dtype not in _DTYPES:
            raise _malformed(label, entry, f"an object with a dtype of {', '.join(_DTYPES)}")
        shape = entry.get("shape")
        if not isinstance(shape, list | tuple) or not 0 < len(shape) < 8:
            raise _malformed(f"{label}.shape", shape, "a list of lengths")
        lengths = tuple(_number(length, f"{label}.shape") for length in shape)
        spec = ArraySpec(name, _DTYPES[dtype], lengths)
        _check_shape(spec, tokens, f"{label}.shape")
        if (size := _number(entry.get("bytes"), f"{label}.bytes")) != spec.size_bytes:
            raise _malformed(f"{label}.bytes", size, f"{spec.size_bytes}, as {spec} has")
        specs[name] = spec
    return specs


def _check_shape(spec: ArraySpec, tokens: int, label: str) -> None:
    """Refuse a shape that no branch of so many tokens has, before anybody makes room for it."""
    first, *others = spec.shape
    if spec.name == ROUTED_EXPERTS:
        fits = first == tokens and len(others) == 2 and _elements(others) <= _MAX_ROW
        expected = f"[{tokens}, layers, top_k] for {tokens} tokens, of at most {_MAX_ROW} experts each"
    elif spec.name.endswith(".counts"):
        fits = first <= tokens and not others
        expected = f"one length, of at most {tokens} tokens"
    else:
        fits = _elements(spec.shape) <= max(1, tokens) * _MAX_IDS
        expected = f"at most {_MAX_IDS} elements for each of {tokens} tokens"
    if not fits:
        raise _malformed(label, list(spec.shape), expected)


def _elements(lengths: Iterable[int]) -> int:
    # A length of 0 hides the others, which numpy refuses where they are too large together.
    return math.prod(max(1, length) for length in lengths)


def _incomplete(value: object) -> dict[str, str]:
    reasons = {}
    for field, reason in _named(value, "reference.incomplete").items():
        if not isinstance(reason, str):
            raise _malformed(f"reference.incomplete[{field!r}]", reason, "a reason in words")
        # Messages show it, and a terminal may show them.
        reasons[field] = "".join(c if c.isprintable() else " " for c in reason[:_MAX_REASON])
    return reasons


def _named(value: object, label: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or len(value) > _MAX_NAMES:
        raise _malformed(label, value, f"an object of at most {_MAX_NAMES} entries by name")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _malformed(label, name, "names such as routed_experts or top_logprobs.ids")
    return value


def _parsed(text: str | bytes, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"{name}: no JSON text: {error}; {_NEXT_STEP}", metadata={"field": name}
        ) from error


def _text(found: Mapping[str, Any], name: str, pattern: re.Pattern[str], expected: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        # A key is a capability, even a malformed one.
        shown = shown_id(value) + "..." if isinstance(value, str) else value
        raise _malformed(f"reference.{name}", shown, expected)
    return value


def _number(value: object, name: str, limit: int = _MAX_NUMBER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise _malformed(name, value, f"an integer from 0 to {limit}")
    return value


def _malformed(name: str, value: object, expected: str) -> InvalidRequestError:
    next_step = _NEXT_STEP if "reference" in name or INFO_KEY in name else "mend the argument"
    return InvalidRequestError(
        f"{name}: found {excerpt(value)}, expected {expected}; {next_step}", metadata={"field": name}
    )

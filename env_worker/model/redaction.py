"""An engine's words without what it was sent in confidence: they reach episodes and logs."""

from __future__ import annotations

import base64
import html
import json
import re
import string
from bisect import bisect_left, bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_LEAST: Final = 8
"""Characters of a secret. What is shorter is none, and may be part of any word."""
_SURE: Final = 16
"""Characters of one that no other text begins with by chance."""
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_HIDDEN: Final = "***"
_ESCAPES: Final[tuple[Callable[[str], str], ...]] = (
    lambda text: json.dumps(text)[1:-1],
    lambda text: text.replace("/", "\\/"),  # JSON as PHP writes it
    lambda text: re.sub("[&<>]", lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(text)[1:-1]),  # and Go
    lambda text: repr(text)[1:-1],
    lambda text: repr(f'"{text}')[2:-1],  # between other quotes
    lambda text: quote(text, safe="", errors="replace"),
    lambda text: quote(text, errors="replace"),
    lambda text: quote_plus(text, errors="replace"),
    html.escape,
)
"""How a text is written within another."""


def redacted(
    text: str,
    secrets: Iterable[str],
    whole: Iterable[str] = (),
    *,
    name: bool = False,
    most: int | None = None,
) -> str:
    """`text` with each of `secrets` replaced by `***`: as it is, on one line, in base64 (also behind other
    words, as `Bearer`), escaped once or twice as JSON, Python, URLs or HTML do, in whichever case.

    So is the beginning of one, since somebody may have cut the text in the midst of it: from 16 characters on
    in whichever case, and from 8 on where they are the very same. Each of `whole` is replaced where all of it
    is, escaped once at most: common words may begin it.

    Args:
        name: `text` is a name and no words, and may well begin as a secret does: 8 characters say nothing.
        most: how many characters to return. No more of `text` is gone through than they take.
    """
    sought = _sought(frozenset(secrets), frozenset(whole))
    if not sought.whole:
        return text[:most]
    low = _lower(text)
    room = len(text) if most is None else most  # of what is told, behind `at`
    kept: list[str] = []
    at = look = 0
    while (found := sought.begins.search(low, look, at + room + _LEAST)) is not None:
        start = found.start()
        alike = sought.beginning(low, start)
        if alike < _SURE and (name or text[start : start + _LEAST] not in sought.exact):
            alike = 0
        if length := max(alike, sought.longest(low, start)):
            kept += text[at:start], _HIDDEN
            room -= start - at + len(_HIDDEN)
            at = look = start + length
        else:
            look = start + 1
        if look >= at + room:
            break
    return "".join((*kept, text[at:]))[:most]


class _Sought:
    """The spellings of what is secret, in lower case and in order: so the neighbours of a text tell what it
    begins with, however many there are, and however much of it they have in common."""

    def __init__(self, secrets: set[str], whole: set[str]) -> None:
        self.exact: Final = frozenset(spelt[:_LEAST] for spelt in secrets)
        """Beginnings of secrets, in their own case."""
        self._secrets: Final = sorted(map(_lower, secrets))
        self.whole: Final = sorted({_lower(spelt) for spelt in secrets | whole})
        self._within: Final = list(_prefixes(self.whole))
        """For each of `whole` the lengths of those that it begins with, itself among them."""
        self._longest: Final = max(map(len, self.whole), default=0)
        self.begins: Final = re.compile(
            "|".join(map(re.escape, sorted({spelt[:_LEAST] for spelt in self.whole})))
        )

    def beginning(self, low: str, start: int) -> int:
        """How much of any secret `low` has at `start`."""
        if not self._secrets:
            return 0
        at = bisect_right(self._secrets, low[start : start + self._longest])
        return max(_shared(spelt, low, start) for spelt in self._secrets[max(at - 1, 0) : at + 1])

    def longest(self, low: str, start: int) -> int:
        """The length of the longest spelling that `low` has as a whole at `start`; 0 if there is none."""
        # All that are the beginning of `low` are the beginning of the last one up to it, too.
        at = bisect_right(self.whole, low[start : start + self._longest]) - 1
        if at < 0:
            return 0
        lengths = self._within[at]
        if low.startswith(self.whole[at], start):
            return lengths[-1]
        if len(lengths) == 1:
            return 0
        fit = bisect_right(lengths, _shared(self.whole[at], low, start))
        return lengths[fit - 1] if fit else 0


@lru_cache(maxsize=16)
def _sought(secrets: frozenset[str], whole: frozenset[str]) -> _Sought:
    spelt = {
        spelling
        for secret in secrets
        if len(secret) >= _LEAST
        for spelling in (*_escaped(secret, 2), *_in_base64(secret))
    }
    wholes = {spelling for value in whole if len(value) >= _LEAST for spelling in _escaped(value, 1)}
    return _Sought(
        {spelling for spelling in spelt if len(spelling) >= _LEAST},
        {spelling for spelling in wholes if len(spelling) >= _LEAST},
    )


def _prefixes(spellings: Sequence[str]) -> Iterator[Sequence[int]]:
    """For each of `spellings`, which are in order, the lengths of those that it begins with."""
    begun: list[str] = []
    for spelling in spellings:
        while begun and not spelling.startswith(begun[-1]):
            begun.pop()
        begun.append(spelling)
        yield tuple(map(len, begun))


def _shared(spelling: str, low: str, start: int) -> int:
    """How many characters of `low` from `start` on are those that `spelling` begins with."""
    lengths = range(1, min(len(spelling), len(low) - start) + 1)
    return bisect_left(lengths, True, key=lambda length: not low.startswith(spelling[:length], start))


def _lower(text: str) -> str:
    """With ASCII's letters in lower case: others would change the length."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def _escaped(text: str, times: int) -> set[str]:
    """`text`, also on one line, and what up to so many escapes make of both."""
    spelt = {text, " ".join(text.split())}
    for _ in range(times):
        spelt |= {escape(one) for one in spelt for escape in _ESCAPES}
    return spelt


def _in_base64(secret: str) -> Iterable[str]:
    """What base64 makes of `secret` behind 3n, 3n + 1 and 3n + 2 other bytes, where it tells of no others."""
    data = secret.encode("utf-8", "replace")
    for ahead in range(3):
        first, end = -(-8 * ahead // 6), 8 * (ahead + len(data)) // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(ahead) + data).decode()[first:end]

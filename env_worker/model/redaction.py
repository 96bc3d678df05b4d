"""An engine's words without what it was sent in confidence: they reach episodes and logs."""

from __future__ import annotations

import base64
import html
import json
import re
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_LEAST: Final = 8
"""Characters of a secret. What is shorter is none, and may be part of any word."""
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


def redacted(text: str, secrets: Iterable[str], whole: Iterable[str] = ()) -> str:
    """`text` with each of `secrets` replaced by `***`: as it is, on one line, in base64 (also behind other
    words, as `Bearer`), escaped once or twice as JSON, Python, URLs or HTML do, in whichever case.

    So is the beginning of one, from 8 characters on: somebody may have cut the text in the midst of it. Each
    of `whole` is replaced where all of it is, escaped once at most: common words may begin it.
    """
    begins, spellings = _sought(frozenset(secrets), frozenset(whole))
    if not spellings:
        return text
    kept: list[str] = []
    at = look = 0
    while (found := begins.search(text, look)) is not None:
        start = found.start()
        alike = (_shared(text, start, spelt, least) for spelt, least in spellings[found[0].lower()])
        if length := max(alike):
            kept += text[at:start], _HIDDEN
            at = look = start + length
        else:
            look = start + 1
    return "".join((*kept, text[at:]))


@lru_cache(maxsize=16)
def _sought(
    secrets: frozenset[str], whole: frozenset[str]
) -> tuple[re.Pattern[str], Mapping[str, Sequence[tuple[str, int]]]]:
    """What finds the beginnings of all spellings; and by beginning, in lower case, each spelling with how
    many of its characters must be there."""
    least = {spelt: len(spelt) for value in whole if len(value) >= _LEAST for spelt in _escaped(value, 1)}
    for secret in secrets:
        if len(secret) >= _LEAST:
            least |= dict.fromkeys((*_escaped(secret, 2), *_in_base64(secret)), _LEAST)
    least = {spelt: characters for spelt, characters in least.items() if len(spelt) >= _LEAST}
    spellings: dict[str, list[tuple[str, int]]] = {}
    for spelt, characters in least.items():
        spellings.setdefault(spelt[:_LEAST].lower(), []).append((spelt, characters))
    begins = "|".join({re.escape(spelt[:_LEAST]) for spelt in least})
    return re.compile(begins, re.IGNORECASE | re.ASCII), spellings


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


def _shared(text: str, start: int, secret: str, least: int) -> int:
    """How many characters of `text` from `start` on are those that `secret` begins with, in either case; 0
    where they are fewer than `least`."""
    if text[start : start + least].lower() != secret[:least].lower():
        return 0
    most = min(len(secret), len(text) - start)
    alike = (text[start + i].lower() == secret[i].lower() for i in range(least, most))
    return least + sum(takewhile(bool, alike))

"""An engine's words without what it was sent in confidence: they reach episodes and logs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_LEAST: Final = 8
"""Characters of a secret. What is shorter is none, and may be part of any word."""
_HIDDEN: Final = "***"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """`text` with each of `secrets` replaced by `***`: as it is, on one line, and as JSON or Python write it.

    So is the beginning of one, from 8 characters on: somebody may have cut the text in the midst of it.
    """
    spellings = {
        spelt
        for secret in secrets
        for spelt in (secret, " ".join(secret.split()), json.dumps(secret)[1:-1], repr(secret)[1:-1])
        if len(spelt) >= _LEAST
    }
    if not spellings:
        return text
    begins = re.compile("|".join(re.escape(spelt[:_LEAST]) for spelt in spellings))
    kept: list[str] = []
    at = 0
    while (found := begins.search(text, at)) is not None:
        kept += text[at : found.start()], _HIDDEN
        at = found.start() + max(_shared(text, found.start(), spelt) for spelt in spellings)
    return "".join((*kept, text[at:]))


def _shared(text: str, start: int, secret: str) -> int:
    """How many characters of `text` from `start` on are those that `secret` begins with."""
    most = min(len(secret), len(text) - start)
    return next((i for i in range(most) if text[start + i] != secret[i]), most)

"""Values from outside as messages show them."""

from __future__ import annotations

import reprlib
from typing import Final

_MAX_CHARACTERS: Final = 80

_REPR: Final = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MAX_CHARACTERS


def excerpt(value: object) -> str:
    """A value in at most 83 printable characters, whatever it is: huge, nested without an end, or hostile."""
    try:
        shown = _REPR.repr(value)
    except Exception:  # Of an integer of very many digits, for one.
        shown = f"<{type(value).__name__}>"
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."


def is_text(value: str) -> bool:
    """Whether a request can carry it: half a character of UTF-16 it cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

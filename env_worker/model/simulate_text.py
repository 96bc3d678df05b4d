"""Text of the simulated model: seeded words, and answers that are wrong in a plausible way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

WORDS: Final = (
    *("the", "a", "each", "both", "every", "this", "that", "first", "second", "last", "next", "same"),
    *("number", "sum", "term", "step", "row", "column", "letter", "word", "digit", "pair", "case", "path"),
    *("check", "count", "carry", "compare", "move", "take", "keep", "drop", "add", "find", "note", "try"),
    *("left", "right", "again", "then", "so", "now", "twice", "once", "above", "below", "before", "after"),
)

_FLIPS: Final = {
    word: other
    for one, two in (("yes", "no"), ("true", "false"), ("left", "right"), ("up", "down"), ("on", "off"))
    for word, other in ((one, two), (two, one))
}
_NUMBER: Final = re.compile(r"\d+")
_SPACE: Final = re.compile(r"(\s+)")


def words(rng: np.random.Generator, count: int) -> str:
    """`count` words, separated by single spaces."""
    return " ".join(WORDS[index] for index in rng.integers(0, len(WORDS), count))


def wrong_answer(rng: np.random.Generator, reference: str) -> str:
    """An answer of the same form as `reference`, and never equal to it.

    A flag is flipped, one number is off by a little, two words or letters are swapped; what allows none of
    these becomes words.
    """
    stripped = reference.strip()
    flipped = _FLIPS.get(stripped.lower())
    if flipped is not None:
        return flipped.upper() if stripped.isupper() else flipped.title() if stripped.istitle() else flipped
    for attempt in (_off_by_a_little, _swapped_words, _swapped_letters):
        answer = attempt(rng, stripped)
        if answer != stripped and answer != reference:
            return answer
    return f"{stripped} {words(rng, 1)}".lstrip()


def _off_by_a_little(rng: np.random.Generator, text: str) -> str:
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    chosen = numbers[int(rng.integers(len(numbers)))]
    digits = chosen.group()
    # Digit by digit, because a number may be longer than int() accepts.
    place = int(rng.integers(len(digits)))
    digit = str((int(digits[place]) + int(rng.integers(1, 9))) % 10)
    return f"{text[: chosen.start()]}{digits[:place]}{digit}{digits[place + 1 :]}{text[chosen.end() :]}"


def _swapped_words(rng: np.random.Generator, text: str) -> str:
    pieces = _SPACE.split(text)  # words at even places, the space between them at odd ones
    pieces[::2] = _swapped(rng, pieces[::2])
    return "".join(pieces)


def _swapped_letters(rng: np.random.Generator, text: str) -> str:
    return "".join(_swapped(rng, list(text)))


def _swapped(rng: np.random.Generator, items: list[str]) -> list[str]:
    """`items` with one neighbouring pair of unequal items swapped, where there is one."""
    unequal = [index for index in range(len(items) - 1) if items[index] != items[index + 1]]
    if unequal:
        index = unequal[int(rng.integers(len(unequal)))]
        items[index], items[index + 1] = items[index + 1], items[index]
    return items

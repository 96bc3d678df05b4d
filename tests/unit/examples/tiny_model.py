"""A model for the example's engine that says what a test wants, byte by byte; its ids are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

START: Final = 256
END: Final = 257
VOCABULARY: Final = 258


class TinyModel:
    """Says `answer` and ends, unless `endless`. `between` is called before each evaluation.

    Ids below 256 are bytes. `fed` has every batch that was evaluated.
    """

    context = 400
    ends = frozenset({END})
    vocabulary = (*(bytes([byte]) for byte in range(256)), b"", b"")

    def __init__(
        self, answer: str = "", *, endless: bool = False, between: Callable[[], object] = lambda: None
    ) -> None:
        self.answer = answer
        self.endless = endless
        self.fed: list[list[int]] = []
        self._between = between
        self._known: list[int] = []
        self._prompt = 0

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [START, *f"{message['role']}\n{message['content']}".encode(), END]
        return [*ids, START, *b"assistant\n"]

    def rewind(self, prompt: Sequence[int]) -> int:
        known = 0
        while known < min(len(self._known), len(prompt) - 1) and self._known[known] == prompt[known]:
            known += 1
        del self._known[known:]
        self._prompt = len(prompt)
        return known

    def feed(self, ids: Sequence[int]) -> None:
        self._between()
        self.fed.append(list(ids))
        self._known += ids

    def logits(self) -> NDArray[np.float32]:
        place = len(self._known) - self._prompt
        said = [*self.answer.encode(), END]
        logits = np.random.default_rng(place).normal(0, 1, VOCABULARY).astype(np.float32)
        # A sampler may have drawn another token than the end's, and asks once more.
        logits[0 if self.endless else said[min(place, len(said) - 1)]] = 9
        return logits

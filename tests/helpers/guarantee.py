"""How a promise that did not hold is told."""

from __future__ import annotations

from typing import NoReturn


class GuaranteeBroken(AssertionError):
    """A promise did not hold. The text is "broke <Promise>: run <8 digits>: what happened instead"."""


def broke(promise: str, run: str, what: str) -> NoReturn:
    """A promise did not hold for this run, or for no one run where `run` is empty."""
    raise GuaranteeBroken(f"broke {promise}: {f'run {run[:8]}: ' if run else ''}{what}")

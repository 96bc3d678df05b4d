"""The suite's own settings."""

from __future__ import annotations

from hypothesis import settings


def test_no_example_is_timed() -> None:
    assert settings().deadline is None

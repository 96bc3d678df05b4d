"""How figures are written in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.versus.figures import Spread


def spread(found: Spread | None, unit: str = "") -> str:
    """A median with its range; "-" for none."""
    if found is None:
        return "-"
    return f"{median(found, unit)} ({number(found.low)} to {number(found.high)})"


def median(found: Spread | None, unit: str = "") -> str:
    """The median alone; "-" for none."""
    return "-" if found is None else f"{number(found.median)}{unit}"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.3g}"

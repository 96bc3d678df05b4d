"""The plan is a function of its seed, and a short run of chaos breaks nothing. `make chaos` runs longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.__main__ import chaos
from tests.chaos.plan import KINDS, faults

if TYPE_CHECKING:
    from pathlib import Path

SEED = 1
SECONDS = 5.0


def test_the_plan_is_a_function_of_the_seed() -> None:
    assert faults(7, 60.0) == faults(7, 60.0)
    assert faults(7, 60.0) != faults(8, 60.0)
    longer = faults(7, 120.0)
    assert longer[: len(faults(7, 60.0))] == faults(7, 60.0)
    assert {fault.kind for fault in faults(7, 900.0)} == set(KINDS)


@pytest.mark.timeout(120)
async def test_chaos(tmp_path: Path) -> None:
    totals = await chaos(tmp_path, SEED, SECONDS)
    assert sum(totals.faults.values()) == len(faults(SEED, SECONDS))
    assert totals.ends["OK"] > 0
    assert totals.events["DiscardBegan"] > 0

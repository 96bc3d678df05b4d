"""The bugs, by the part of the contract that they break.

Each names the smallest set of tests that must fail on it. They are applied one at a time, to a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.mutants.array_budget import ARRAY_BUDGET
from tests.mutants.array_segments import ARRAY_SEGMENTS
from tests.mutants.arrays import ARRAYS
from tests.mutants.broker import BROKER
from tests.mutants.broker_lane import BROKER_LANE
from tests.mutants.broker_sessions import BROKER_SESSIONS
from tests.mutants.client import CLIENT
from tests.mutants.client_lane import CLIENT_LANE
from tests.mutants.client_sessions import CLIENT_SESSIONS
from tests.mutants.worker import WORKER
from tests.mutants.worker_sessions import WORKER_SESSIONS

if TYPE_CHECKING:
    from tests.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *ARRAY_BUDGET,
    *ARRAY_SEGMENTS,
    *ARRAYS,
    *WORKER,
    *WORKER_SESSIONS,
    *BROKER,
    *BROKER_LANE,
    *BROKER_SESSIONS,
    *CLIENT,
    *CLIENT_LANE,
    *CLIENT_SESSIONS,
)

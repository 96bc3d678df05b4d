"""What the exit code of a worker says."""

from __future__ import annotations

import pytest

from env_worker.exit_codes import MEANINGS, exit_code


@pytest.mark.parametrize(
    ("cause", "unfinished", "held", "ended", "code"),
    [
        (0, 0, 0, 0, 0),
        (0, 1, 1, 1, 3),
        (0, 0, 1, 1, 4),
        (0, 0, 0, 1, 5),
        (1, 0, 1, 1, 1),
        (6, 0, 1, 1, 6),
        (1, 1, 0, 0, 3),
        (6, 1, 0, 0, 3),
    ],
)
def test_the_worst_loss_is_told_and_why_it_ended_by_itself(
    cause: int, unfinished: int, held: int, ended: int, code: int
) -> None:
    assert exit_code(cause, unfinished=unfinished, held=held, ended=ended) == code
    assert code in MEANINGS

"""What the log says of holes: each kind once, and not without end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from env_worker.arrays.hole_log import MAX_KINDS, HoleLog
from env_worker.arrays.keeping import INFO_KEY
from env_worker.domain import Episode

if TYPE_CHECKING:
    import pytest


def told(log: HoleLog, caplog: pytest.LogCaptureFixture, *reasons: str) -> list[str]:
    caplog.clear()
    episode = Episode("e", "env", {})
    trace = episode.new_trace()
    trace.info[INFO_KEY] = [{"incomplete": {"routed_experts": reason}} for reason in reasons]
    with caplog.at_level(logging.WARNING):
        log.tell(episode)
    return [record.getMessage() for record in caplog.records]


def test_each_kind_is_told_once_whatever_its_numbers(caplog: pytest.LogCaptureFixture) -> None:
    log = HoleLog()
    assert len(told(log, caplog, "node 3 has none", "node 4 has none", "node 3 has NaN")) == 2
    assert told(log, caplog, "node 5 has none") == []


def test_reasons_without_end_are_told_up_to_a_bound_which_is_said(caplog: pytest.LogCaptureFixture) -> None:
    log = HoleLog()
    words = [f"the engine said {chr(0x4E00 + number)}" for number in range(MAX_KINDS + 50)]
    messages = told(log, caplog, *words)
    assert len(messages) == MAX_KINDS
    assert "further ones of this kind" in messages[0]
    assert "further ones of any kind" in messages[-1]
    assert told(log, caplog, "something else") == []

"""The broker's own sessions at workers have names that only they know."""

from __future__ import annotations

import re

from env_broker.session_names import SessionNames


def test_each_worker_has_its_own_and_keeps_it() -> None:
    names, others = SessionNames(), SessionNames()
    found = {names.session_id(instance) for instance in ("a" * 32, "b" * 32, "")}
    assert len(found) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in found)
    assert names.session_id("a" * 32) == names.session_id("a" * 32)
    assert not found & {others.session_id(instance) for instance in ("a" * 32, "b" * 32, "")}


def test_epochs_rise_for_all() -> None:
    names = SessionNames()
    assert [names.next_epoch() for _ in range(3)] == [1, 2, 3]

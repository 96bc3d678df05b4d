"""What is promised of a Run at a broker, of runs in a session: the same tests, and the same worker."""

from __future__ import annotations

import pytest

from tests.helpers.raw_client import RawClient
from tests.helpers.scripted_worker import ScriptedWorker
from tests.integration import test_broker_cancel, test_broker_queue, test_broker_relay

OF_RUN_ONLY = {
    "test_a_call_without_a_request_is_refused",
    # There a request is decoded with its frame, and is smaller.
    "test_requests_are_checked",
    "test_an_oversized_request_is_refused_naming_the_field",
    "test_a_request_is_let_go_of_when_a_worker_has_it",
}

for module in (test_broker_relay, test_broker_cancel, test_broker_queue):
    globals().update(
        {name: test for name, test in vars(module).items() if name[:5] == "test_" and name not in OF_RUN_ONLY}
    )


@pytest.fixture(autouse=True, params=[False, True], ids=["to a run", "to a lane"])
def by_lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The client's runs go in a session; the broker's to its worker in one, or each by a call of its own."""
    monkeypatch.setattr(RawClient, "by_session", True)
    monkeypatch.setattr(ScriptedWorker, "carries_runs", request.param)
    return bool(request.param)

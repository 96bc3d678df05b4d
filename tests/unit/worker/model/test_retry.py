"""A request is tried again where that can help, after bounded pauses, and each failure is heard of."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_worker.model.errors import EngineRefusedError, EngineUnreachableError
from env_worker.model.retry import (
    LONGEST_RETRY_AFTER_SECONDS,
    Backoff,
    FailedTry,
    TryFailedError,
    persist,
    retry_after_seconds,
)

BUSY = EngineRefusedError("busy", status=503, retryable=True)
WRONG = EngineRefusedError("no such model", status=404)


class Requests:
    """Fails as scripted, then returns "answer"; and notes what is slept and reported."""

    def __init__(self, *failures: TryFailedError) -> None:
        self.failures = list(failures)
        self.tries = 0
        self.slept: list[float] = []
        self.reported: list[FailedTry] = []

    async def once(self) -> str:
        self.tries += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def persist(self, retries: int = 4) -> str:
        backoff = Backoff(sleep=self.sleep, draw=lambda: 1.0)
        return await persist(self.once, self.reported.append, retries=retries, backoff=backoff)


async def test_what_can_be_retried_is_until_it_works() -> None:
    requests = Requests(TryFailedError(BUSY), TryFailedError(BUSY))
    assert await requests.persist() == "answer"
    assert requests.tries == 3
    assert [failed.attempt for failed in requests.reported] == [1, 2]
    assert all(failed.error is BUSY for failed in requests.reported)
    assert requests.slept == [0.5, 1.0]


async def test_what_cannot_is_not() -> None:
    requests = Requests(TryFailedError(WRONG))
    with pytest.raises(EngineRefusedError, match="no such model"):
        await requests.persist()
    assert requests.tries == len(requests.reported) == 1
    assert not requests.slept


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_retries_are_bounded_and_the_last_error_is_raised(retries: int) -> None:
    last = EngineUnreachableError("the last", retryable=True)
    requests = Requests(*[TryFailedError(BUSY)] * retries, TryFailedError(last))
    with pytest.raises(EngineUnreachableError, match="the last") as raised:
        await requests.persist(retries)
    assert raised.value is last
    assert requests.tries == len(requests.reported) == retries + 1
    assert len(requests.slept) == retries
    assert str(raised.value) == f"the last; given up after {retries + 1} tries (--model-retries {retries})"


async def test_any_other_error_is_raised_at_once() -> None:
    async def once() -> str:
        raise ValueError("not JSON")

    reported: list[FailedTry] = []
    with pytest.raises(ValueError, match="not JSON"):
        await persist(once, reported.append, retries=4, backoff=Backoff())
    assert not reported


async def test_an_engine_that_says_when_is_asked_then() -> None:
    requests = Requests(TryFailedError(BUSY, 7.0), TryFailedError(BUSY, 3600.0))
    await requests.persist()
    assert requests.slept == [7.5, LONGEST_RETRY_AFTER_SECONDS + 0.5]


@given(st.integers(1, 10_000), st.floats(0, 1), st.none() | st.floats(0, 1e12))
def test_pauses_are_bounded(attempt: int, drawn: float, asked: float | None) -> None:
    pause = Backoff(draw=lambda: drawn).pause(attempt, asked)
    if asked is None:
        assert 0 <= pause <= min(8.0, 0.5 * 2.0 ** min(attempt - 1, 20))
    else:
        assert min(asked, LONGEST_RETRY_AFTER_SECONDS) <= pause <= LONGEST_RETRY_AFTER_SECONDS + 0.5


def test_pauses_are_drawn_from_zero_on() -> None:
    assert Backoff(draw=lambda: 0.0).pause(5) == 0


NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("12", 12.0),
        (" 12 ", 12.0),
        ("1.5", None),
        ("1_000", None),
        ("1e3", None),
        ("+5", None),
        ("٣", None),
        ("9" * 5000, None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        (" 7\t", 7.0),
        ("0\x1f", None),
        ("", None),
        (format_datetime(datetime.fromtimestamp(NOW + 90, UTC), usegmt=True), 90.0),
        (format_datetime(datetime.fromtimestamp(NOW - 90, UTC), usegmt=True), None),
        ("Tue, 99 Foo 2023 25:61:00 GMT", None),
        ("Tue, 14 Nov 99999 22:13:20 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, NOW) == seconds


@given(st.text(max_size=40))
def test_retry_after_may_hold_anything(header: str) -> None:
    seconds = retry_after_seconds(header, NOW)
    assert seconds is None or seconds >= 0

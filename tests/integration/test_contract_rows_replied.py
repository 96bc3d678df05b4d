"""The rows of the contract of keep and discard behind the reply, one test each; see test_contract_rows.py."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING

import pytest

from tests.helpers.runner_harness import Stop, within
from tests.helpers.stub_client import new_id
from tests.helpers.worker_server import serving_worker

if TYPE_CHECKING:
    from env_worker.domain import Episode
    from tests.helpers.stub_client import OpenRun, Transport

SESSION = "a" * 32


async def test_the_reply_was_sent_then_cancel_within_the_window(transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        run = await subject.replied()
        subject.after(59.9)
        assert await subject.client.cancel(run) == "DISCARDED"
        await subject.until_discarded(run)
        assert subject.discards(run) == 1


async def test_the_reply_was_sent_then_confirmed(transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        session = await subject.session(SESSION)
        run = await subject.replied(SESSION)
        assert await session.confirm(run) == ["CONFIRMED"]
        assert subject.runner.table.open_windows == 0, "delivered for good at once"
        assert await subject.client.cancel(run) == "TOO_LATE"
        session.drop()


@pytest.mark.parametrize(
    "order",
    [*itertools.permutations(("cancel", "confirm", "disconnect", "expiry"), 2), ("cancel", "cancel")],
    ids="-".join,
)
@pytest.mark.parametrize("state", ["while keep runs", "replied"])
async def test_two_or_more_together(order: tuple[str, ...], state: str, transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        session = await subject.session(SESSION)
        stop = Stop()
        open_run: OpenRun | None = None
        if state == "replied":
            run = await subject.replied(SESSION)
        else:
            open_run = await subject.in_keep(stop, session_id=SESSION)
            run = open_run.run

        async def do(what: str) -> None:
            if what == "cancel":
                await subject.client.cancel(run)
            elif what == "confirm":
                await session.confirm(run)
            elif what == "expiry":
                subject.after(60)
            elif open_run is not None:
                await open_run.drop()

        await asyncio.gather(*map(do, order))
        stop.go()
        if open_run is not None and "disconnect" not in order:
            await open_run.finish()
        await within(subject.runner.wait_hooks())
        assert subject.discards(run) <= 1
        first = await subject.client.cancel(run)
        assert first in ("ABORTED", "DISCARDED", "TOO_LATE")
        assert await session.confirm(run) == ["CONFIRMED" if first == "TOO_LATE" else "DISCARDED"]
        await within(subject.runner.wait_hooks())
        assert subject.discards(run) == (0 if first == "TOO_LATE" else 1)
        session.drop()


async def test_the_reply_was_sent_and_neither_came_within_the_window(transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        run = await subject.replied()
        subject.after(60)
        assert subject.runner.counters["expired"] == 1
        assert await subject.client.cancel(run) == "TOO_LATE"
        assert subject.discards(run) == 0


@pytest.mark.parametrize("what", ["cancel", "confirm", "neither"])
async def test_sigterm_within_the_window(what: str, transport: Transport) -> None:
    linger = 0.1 if what == "neither" else 600.0
    async with serving_worker(transport=transport, linger_seconds=linger) as subject:
        session = await subject.session(SESSION)
        run = await subject.replied(SESSION)
        stopping = asyncio.create_task(subject.stop())
        await within(subject.runner.wait_until(lambda: subject.runner.draining))
        if what == "cancel":
            assert await subject.client.cancel(run) == "DISCARDED"
        elif what == "confirm":
            assert await session.confirm(run) == ["CONFIRMED"]
        assert await stopping == [], "its last window is closed, or its time to linger is over"
        assert subject.runner.table.open_windows == (1 if what == "neither" else 0)
        assert subject.discards(run) == (1 if what == "cancel" else 0)


@pytest.mark.parametrize("settled", ["live", "replied", "confirmed", "expired"])
async def test_cancel_after_it_was_settled(settled: str, transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:
        session = await subject.session(SESSION)
        if settled == "live":
            stop = Stop()
            open_run = await subject.in_keep(stop)
            run = open_run.run
            assert await subject.client.cancel(run) == "ABORTED"
            assert (await open_run.finish()).reason == "CANCEL_REQUESTED"
            stop.go()
        else:
            run = await subject.replied(SESSION)
            if settled == "replied":
                assert await subject.client.cancel(run) == "DISCARDED"
            elif settled == "confirmed":
                assert await session.confirm(run) == ["CONFIRMED"]
            else:
                subject.after(60)
        await within(subject.runner.wait_hooks())
        outcome = {"live": "ABORTED", "replied": "DISCARDED"}.get(settled, "TOO_LATE")
        subject.after(119)
        for _ in range(3):
            assert await subject.client.cancel(run) == outcome
        await within(subject.runner.wait_hooks())
        assert subject.discards(run) == (0 if outcome == "TOO_LATE" else 1)
        session.drop()


async def test_discard_raises(caplog: pytest.LogCaptureFixture, transport: Transport) -> None:
    async with serving_worker(transport=transport) as subject:

        def discard(episode: Episode) -> None:
            raise OSError(f"disk of {episode.id}")

        run = await subject.replied()
        subject.hook.in_discard[run] = discard
        assert await subject.client.cancel(run) == "DISCARDED"
        await subject.until_discarded(run)
        await within(subject.runner.wait_hooks())
        assert await subject.client.cancel(run) == "DISCARDED"
        assert (subject.discards(run), subject.runner.counters["discard_failures"]) == (1, 1)
        assert "discard raised" in caplog.text


async def test_a_cancel_of_a_run_that_never_comes_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """A client repeats it until the window is over."""
    caplog.set_level(logging.DEBUG, "env_worker.servicer")
    async with serving_worker() as subject:
        replied = await subject.replied()
        assert await subject.client.cancel(new_id()) == "REMEMBERED"
        assert await subject.client.cancel(replied) == "DISCARDED"
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    levels = {text.split("outcome=")[1].split()[0]: level for level, text in said if "outcome=" in text}
    assert levels == {"REMEMBERED": logging.DEBUG, "DISCARDED": logging.INFO}

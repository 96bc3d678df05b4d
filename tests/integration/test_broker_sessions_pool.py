"""Sessions through a broker to real workers with a hook: whatever comes, kept episodes are told of once."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.helpers import oracle
from tests.helpers.history import (
    Asked,
    CancelAnswered,
    ConfirmAnswered,
    DiscardBegan,
    DiscardReturned,
    Ended,
    EnvironmentBegan,
    SessionLost,
)
from tests.helpers.history_pipe import HistoryPipe
from tests.helpers.pools import HOOK, QUICK_STOP, ROOT, serving
from tests.helpers.session_stream import SessionStream
from tests.helpers.stub_client import StubClient, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.helpers.pools import Subject

TASK = {"turns": 2, "tokens_per_turn": 8}
FOREVER = {"script": [["trace"], ["say", 1], ["forever"]]}
GRACE_AND_ROOM = 5.0


@asynccontextmanager
async def client_of(pool: Subject) -> AsyncIterator[StubClient]:
    """A client whose runs the oracle judges at the end."""
    async with StubClient(pool.address, pool.pipe.history) as client:
        yield client
        oracle.contract_holds(await pool.pipe.at_rest(client.runs), asked=client.asked)


async def opened(pool: Subject, client: StubClient, session_id: str, epoch: int = 1) -> SessionStream:
    return await SessionStream(client.stub, pool.pipe.history).open(session_id, epoch)


async def test_confirmed_is_final_and_discarded_too(pool: Subject) -> None:
    mine = new_id()
    async with client_of(pool) as client:
        assert "sessions" in (await client.describe()).capabilities
        session = await opened(pool, client, mine)
        outcomes = await asyncio.gather(*(client.run(TASK, session_id=mine) for _ in range(8)))
        runs = [outcome.run for outcome in outcomes]
        assert await session.confirm(*runs[:4]) == ["CONFIRMED"] * 4
        for run in runs[4:]:
            assert await client.cancel(run) == "DISCARDED"
        assert await session.confirm(*runs) == ["CONFIRMED"] * 4 + ["DISCARDED"] * 4
        assert [await client.cancel(run) for run in runs] == ["TOO_LATE"] * 4 + ["DISCARDED"] * 4
        assert await session.goodbye() == ("OK", "")


async def test_cancels_and_confirmations_that_meet_tell_the_same(pool: Subject) -> None:
    mine, dice = new_id(), random.Random(7)
    async with client_of(pool) as client:
        session = await opened(pool, client, mine)
        for _ in range(24):
            run = (await client.run(TASK, session_id=mine)).run
            works = [client.cancel(run) for _ in range(3)]
            works.insert(dice.randrange(4), session.confirm(run))  # type: ignore[arg-type]
            await asyncio.gather(*works)
            [confirmed] = pool.pipe.history.of(run, ConfirmAnswered)
            cancelled = {answer.outcome for answer in pool.pipe.history.of(run, CancelAnswered)}
            assert (confirmed.outcome, cancelled) in [
                ("CONFIRMED", {"TOO_LATE"}),
                ("DISCARDED", {"DISCARDED"}),
            ]
        await session.goodbye()


@pytest.mark.parametrize("when", ["waiting or live", "after its reply", "with its request", "ahead"])
async def test_concurrent_cancels_all_get_the_same_outcome(pool: Subject, when: str) -> None:
    async with client_of(pool) as client:
        for _ in range(8):
            run, ending = new_id(), None
            if when == "after its reply":
                await client.run(TASK, request_id=run)
            elif when != "ahead":
                ending = client.start(FOREVER, request_id=run, environment="scripted")
                if when == "waiting or live":
                    await pool.pipe.seen(run, EnvironmentBegan)
            outcomes = set(await asyncio.gather(*(client.cancel(run) for _ in range(6))))
            if when == "ahead":
                assert outcomes == {"REMEMBERED"}
                ending = client.start(FOREVER, request_id=run, environment="scripted")
            if ending is not None:
                ended = await ending.finish()
                assert (ended.code, ended.reason) == ("CANCELLED", "CANCEL_REQUESTED")
            final = "DISCARDED" if when == "after its reply" else "ABORTED"
            assert outcomes <= {final, "REMEMBERED"}
            assert await client.cancel(run) == final


async def test_a_session_that_does_not_come_back_leaves_nothing(pool: Subject) -> None:
    mine = new_id()
    async with client_of(pool) as client:
        session = await opened(pool, client, mine)
        unconfirmed, confirmed = [(await client.run(TASK, session_id=mine)).run for _ in range(2)]
        bare = (await client.run(TASK)).run
        live = client.start(FOREVER, session_id=mine, environment="scripted")
        await live.next()
        assert await session.confirm(confirmed) == ["CONFIRMED"]
        session.drop()
        for run in (unconfirmed, confirmed, live.run):
            pool.pipe.history.note(SessionLost, run)
        began = time.monotonic()
        ended = await live.finish()
        assert (ended.code, ended.reason) == ("CANCELLED", "CANCEL_REQUESTED")
        await pool.pipe.seen(unconfirmed, DiscardReturned)
        assert time.monotonic() - began < GRACE_AND_ROOM
        again = await opened(pool, client, mine, 2)
        assert await again.confirm(unconfirmed, confirmed, bare) == ["DISCARDED", "CONFIRMED", "CONFIRMED"]
        assert not pool.pipe.history.of(bare, DiscardBegan)
        await again.goodbye()


async def test_a_client_that_is_killed_before_it_confirmed_leaks_nothing(pool: Subject) -> None:
    async with client_of(pool) as client:
        run, history = new_id(), pool.pipe.history
        client.runs.append(run)
        client.asked += 1
        history.note(Asked, run)
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.helpers.unconfirming_client", pool.address, run, new_id()),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            assert child.stdout is not None
            assert await asyncio.wait_for(child.stdout.readline(), 20) == b"replied\n"
            assert not history.of(run, DiscardBegan)
        finally:
            child.kill()
            await child.wait()
        killed = time.monotonic()
        history.note(Ended, run, code="OK")  # it had its reply
        history.note(SessionLost, run)
        await pool.pipe.seen(run, DiscardReturned)
        assert time.monotonic() - killed < GRACE_AND_ROOM


async def test_a_broker_that_is_killed_and_restarted_forgets_no_confirmation(tmp_path: Path) -> None:
    pipe, mine = HistoryPipe(tmp_path / "history"), new_id()
    worker = ("--env", "synthetic", "--hook", HOOK, *QUICK_STOP)
    try:
        async with serving("env_broker") as broker:
            where = ("--broker", broker.address)
            async with serving("env_worker", *worker, *where, variables=pipe.variables):
                async with StubClient(broker.address, pipe.history) as client:
                    await client.until_serving()
                    runs = [(await client.run(TASK, session_id=mine)).run for _ in range(4)]
                    session = await SessionStream(client.stub, pipe.history).open(mine)
                    assert await session.confirm(runs[2]) == ["CONFIRMED"]
                    assert await client.cancel(runs[3]) == "DISCARDED"
                    broker.process.kill()
                    await broker.process.wait()
                    assert (await session.status())[0] == "UNAVAILABLE"
                async with (
                    serving("env_broker", "--listen", broker.address) as restarted,
                    StubClient(restarted.address, pipe.history) as client,
                ):
                    client.runs += runs
                    session = await SessionStream(client.stub, pipe.history).open(mine, 2)
                    early = await session.confirm(runs[0])
                    assert early in (["UNKNOWN"], ["CONFIRMED"])
                    await client.until_serving()
                    assert await session.confirm(runs[0]) == ["CONFIRMED"]
                    assert await client.cancel(runs[1]) == "DISCARDED"
                    # What the worker settled it does not report, but it is asked.
                    assert await session.confirm(*runs) == ["CONFIRMED", "DISCARDED"] * 2
                    assert [await client.cancel(run) for run in runs] == ["TOO_LATE", "DISCARDED"] * 2
                    assert await session.goodbye() == ("OK", "")
                    oracle.contract_holds(await pipe.at_rest(runs), asked=4)
    finally:
        pipe.close()

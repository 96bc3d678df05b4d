"""A client's runs in its lane against a real pool: equal to those by Run, and disturbed without a trace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from env_client import EnvClient, EnvError, SyncEnvClient, lane
from tests.helpers.stream_view import difference, without_times

if TYPE_CHECKING:
    import pytest

    from tests.helpers.pools import Subject
    from tests.helpers.recorded_client import RecordedClient

COUNT = 48


def task(seed: int) -> dict[str, Any]:
    # Some are over the initial credit.
    return {"turns": 1 + seed % 8, "tokens_per_turn": 5_000 if seed % 16 == 7 else 50, "seed": seed}


def streams_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The streams that are opened from now on."""
    opened: list[Any] = []
    made = lane.LaneStream

    def noted(*arguments: Any) -> Any:
        opened.append(made(*arguments))
        return opened[-1]

    monkeypatch.setattr(lane, "LaneStream", noted)
    return opened


async def test_runs_in_a_lane_are_those_by_run(
    pool: Subject, recorded: RecordedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = streams_of(monkeypatch)
    carried = await asyncio.gather(*[recorded.run(task(seed)) for seed in range(COUNT)])
    assert [stream.takes_runs and stream.was_opened for stream in streams] == [True]

    def by_run() -> list[Any]:
        with SyncEnvClient(pool.address, env="synthetic", timeout=30.0) as client:
            return [client.run(task(seed)) for seed in range(COUNT)]

    for found, wanted in zip(carried, await asyncio.to_thread(by_run), strict=True):
        assert not isinstance(found, EnvError)
        assert difference(without_times(found), without_times(wanted)) is None


async def test_runs_that_are_left_in_a_lane_disturb_no_other(recorded: RecordedClient) -> None:
    landed = 0

    def count(_: object) -> None:
        nonlocal landed
        landed += 1

    slow = {"turns": 200, "turn_seconds": 0.05}
    left = [asyncio.ensure_future(recorded.run(slow, on_delta=count)) for _ in range(12)]
    kept = [asyncio.ensure_future(recorded.run(task(seed), on_delta=count)) for seed in range(12)]
    await asyncio.gather(*kept)
    for run in left:
        run.cancel()
    results = await asyncio.gather(*left, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert not any(isinstance(run.result(), EnvError) for run in kept)


async def test_a_stream_that_nobody_reads_holds_up_no_other(pool: Subject) -> None:
    big = {"turns": 40, "tokens_per_turn": 5_000}
    async with (
        EnvClient(pool.address, env="synthetic", timeout=30.0) as client,
        client.stream(big) as unread,
    ):
        await asyncio.gather(*[client.run(task(seed)) for seed in range(16)])
        assert unread.received_bytes == 0
        episode = await unread.result()
        assert unread.received_bytes > 1024 * 1024
    assert sum(len(node.mask) for node in episode.traces[0].nodes) >= 200_000

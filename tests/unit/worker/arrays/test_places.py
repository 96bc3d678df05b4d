"""Who may stream, who waits, and who loses a place to others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from env_worker.arrays import places as places_module
from env_worker.arrays.places import Place, Places


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Streams:
    """Streams that hold their place until they are told to end; by name, in the order of their turns."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.begun: list[str] = []
        self.given: dict[str, Place] = {}
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stream(name))
        await turns()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
        await turns()

    async def _stream(self, name: str) -> None:
        async with self.places.place() as place:
            self.begun.append(name)
            self.given[name] = place
            await self.ends[name].wait()


@pytest.fixture
def streams() -> Streams:
    return Streams(Places(2, 0.0))


async def test_places_are_given_in_the_order_in_which_they_were_asked_for(streams: Streams) -> None:
    await streams.come(*"abcde")
    assert (streams.begun, streams.places.taken, streams.places.waiting) == (["a", "b"], 2, 3)
    await streams.end("b")
    await streams.come("f")
    await streams.end("a", "c")
    assert streams.begun == list("abcde")
    await streams.end(*"def")
    assert streams.begun == list("abcdef")
    assert (streams.places.taken, streams.places.waiting) == (0, 0)


@pytest.mark.parametrize("in_the_same_moment", [False, True])
async def test_who_hangs_up_while_it_waits_costs_nobody_a_place(
    streams: Streams, in_the_same_moment: bool
) -> None:
    await streams.come(*"abcd")
    if in_the_same_moment:
        streams.ends["a"].set()
        while streams.places.waiting == 2:  # noqa: ASYNC110  # until c has its place, and has not run
            await asyncio.sleep(0)
    streams.tasks["c"].cancel()
    await turns()
    assert streams.tasks["c"].cancelled()
    await streams.end("a", "b")
    assert streams.begun == ["a", "b", "d"]
    await streams.end("d")
    assert (streams.places.taken, streams.places.waiting) == (0, 0)


async def test_whoever_stalled_longest_loses_a_place_to_one_that_waits_and_to_nobody_else() -> None:
    streams = Streams(Places(3, 5.0))
    await streams.come(*"abc")
    now = asyncio.get_running_loop().time()
    for name, seconds in (("a", 6.0), ("b", 9.0), ("c", 4.0)):
        streams.given[name].stalled_since = now - seconds
    await turns()
    assert not any(place.taken_away.done() for place in streams.given.values()), "nobody wants them"
    await streams.come("d")
    assert streams.given["b"].taken_away.done()
    assert streams.begun == list("abcd"), "at once, however long the one that lost it takes to end"
    assert not streams.given["a"].taken_away.done()
    await streams.come("e", "f")
    assert streams.given["a"].taken_away.done()
    assert not streams.given["c"].taken_away.done(), "4 s are not 5"
    assert (streams.begun, streams.places.waiting) == (list("abcde"), 1)
    await streams.end("a", "b")
    assert streams.places.waiting == 1, "theirs were given already"
    await streams.end(*"cdef")
    assert (streams.begun, streams.places.taken) == (list("abcdef"), 0)


async def test_one_that_stalls_while_another_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "RECLAIM_SECONDS", 0.001)
    streams = Streams(Places(1, 0.0))
    await streams.come("a", "b")
    assert streams.begun == ["a"]
    streams.given["a"].stalled_since = 0.0
    async with asyncio.timeout(5):
        await streams.given["a"].taken_away
    await turns()
    assert streams.begun == ["a", "b"]
    await streams.end("a", "b")


async def test_of_callers_left_behind_there_are_no_more_than_places() -> None:
    """gRPC keeps what each of them has not taken: without a bound dead callers would take all memory."""
    streams = Streams(Places(2, 0.0))
    await streams.come(*"ab")
    async with AsyncExitStack() as heard:
        for _ in range(2):
            heard.enter_context(streams.places.left_behind())
        for place in streams.given.values():
            place.stalled_since = 0.0
        await streams.come("c")
        assert not any(place.taken_away.done() for place in streams.given.values())
        with streams.places.left_behind():
            await streams.end("a")
            assert streams.begun == ["a", "b"], "the third one counts as a place"
        await turns()
        assert streams.begun == ["a", "b", "c"]
    await streams.end("b", "c")

"""A session's outbox under runs that do anything in any order: credit, one message and one end each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from env_worker.session_outbox import MAX_FRAMES, TARGET_BYTES
from tests.helpers.outbox_bench import CANCELLED, Bench, frames_in

if TYPE_CHECKING:
    from env_worker.session_run import SessionRun


class OutboxMachine(RuleBasedStateMachine):
    """Runs that send, reply, end and are given credit in any order, and a writer that is slow at will."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.bench: Bench = self.loop.run_until_complete(self.made())
        self.runs: dict[int, SessionRun] = {}
        self.offered: dict[int, int] = {}
        """The credit that was given."""
        self.sent: dict[int, list[bytes]] = {}
        self.came: dict[int, list[bytes]] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.replies: set[int] = set()
        self.admitted: set[int] = set()
        self.ended: dict[int, int] = {}
        self.writing: list[tuple[Any, ...]] | None = None

    async def made(self) -> Bench:
        return Bench()

    def settle(self) -> None:
        async def turns() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def live(self) -> list[int]:
        return [number for number in self.runs if number not in self.bench.ends]

    @rule(credit=st.sampled_from([0, 1, 100, 2**30]))
    def a_run_comes(self, credit: int) -> None:
        async def made() -> SessionRun:
            return self.bench.run(number, credit)

        number = len(self.runs)
        self.runs[number] = self.loop.run_until_complete(made())
        self.offered[number] = credit
        self.sent[number], self.came[number] = [], []
        if credit != 100:
            self.bench.ports[number].open()

    @precondition(lambda self: self.live())
    @rule(data=st.data(), size=st.sampled_from([0, 1, 99, TARGET_BYTES - 50, TARGET_BYTES + 1]))
    def a_run_sends(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.sampled_from(self.live()))
        port = self.bench.ports[number]
        if number in self.tasks or number in self.replies:
            return
        payload = bytes((len(self.sent[number]) % 256,)) * size
        self.sent[number].append(payload)
        port.open()

        async def send() -> asyncio.Task[None]:
            if size == 99:
                self.replies.add(number)
                return await self.bench.reply(number, payload)
            return await self.bench.send(number, payload)

        self.tasks[number] = self.loop.run_until_complete(send())

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def a_run_ends(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.live()))
        self.bench.ports[number].end(CANCELLED)
        self.settle()

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), size=st.sampled_from([1, 1000, TARGET_BYTES]))
    def credit_comes(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.sampled_from(list(self.runs)))
        self.offered[number] += size
        self.runs[number].credit(size)

    @precondition(lambda self: self.writing is None)
    @rule()
    def a_write_begins(self) -> None:
        message = self.bench.outbox.next_message()
        if message is None:
            return
        self.writing = frames_in(message)
        data = [number for kind, number, *_ in self.writing if kind == "data"]
        ends = [number for kind, number, *_ in self.writing if kind == "end"]
        assert len(data) == len(set(data)), "one message of a run is on its way at most"
        assert len(self.writing) <= MAX_FRAMES
        assert len(self.writing) == 1 or len(message) <= TARGET_BYTES + 32 * len(self.writing)
        for kind, number, *rest in self.writing:
            assert number not in self.ended, "nothing of a run comes behind its end"
            if kind == "admitted":
                assert number not in self.admitted
                assert not self.came[number]
                self.admitted.add(number)
            elif kind == "data":
                assert number in self.admitted
                before = sum(map(len, self.came[number]))
                assert before < self.offered[number], "it is sent while any credit is left, and not then"
                self.came[number].append(rest[0])
                assert self.came[number] == self.sent[number][: len(self.came[number])]
            else:
                self.ended[number] = rest[0]
        for number in ends:
            assert number not in data or self.ended[number] != 0, "a reply and its OK in one message"

    @precondition(lambda self: self.writing is not None)
    @rule()
    def a_write_returns(self) -> None:
        assert self.writing is not None
        replying = {n for kind, n, *_ in self.writing if kind == "data" and n in self.replies}
        open_before = set(self.live())
        committed = set(self.bench.committed)
        self.bench.outbox.written()
        assert self.bench.committed - committed == {
            number for number in replying & open_before if self.came[number] == self.sent[number]
        }
        self.writing = None
        self.settle()

    @invariant()
    def told_once_and_truthfully(self) -> None:
        if not hasattr(self, "bench"):
            return
        for number in [number for number, task in self.tasks.items() if task.done()]:
            task = self.tasks.pop(number)
            if task.exception() is None:
                assert self.came[number] == self.sent[number], "sent is what was written"
        for number, code in self.ended.items():
            assert (code == 0) is (number in self.bench.committed)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for number in self.live():
            self.bench.ports[number].end(CANCELLED)
        self.settle()
        while True:
            if self.writing is not None:
                self.a_write_returns()
            self.a_write_begins()
            if self.writing is None:
                break
        self.told_once_and_truthfully()
        assert set(self.ended) == set(self.runs), "each has one end"
        for run in self.runs.values():
            assert run.port is None
        self.loop.close()


OutboxMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestOutbox = OutboxMachine.TestCase

"""What runs in one stream of a session may cost a worker, and each other."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import grpc
from envtrio.v1 import env_service_pb2 as pb

from env_worker import entrance, session_runs
from env_worker.request import BIG_REQUEST_BYTES
from tests.helpers.array_service import NARROW
from tests.helpers.run_stream import RunStream
from tests.helpers.runner_harness import SECONDS
from tests.helpers.stub_client import MIB
from tests.helpers.worker_server import ENDLESS, SMALL, serving_worker

if TYPE_CHECKING:
    import pytest

    from tests.helpers.worker_server import WorkerSubject

# Credit.


async def test_a_run_without_credit_holds_up_no_other() -> None:
    async with serving_worker(max_concurrent=4) as subject:
        stream = await RunStream(subject).open()
        slow = {"turns": 3, "turn_seconds": 0.05, "layers": 0}
        none, some = stream.start(SMALL, credit=0), stream.start(slow, credit=1)
        others = [stream.start(SMALL) for _ in range(20)]
        await stream.finish(*others)
        await stream.until(lambda: none.admitted and bool(some.data))
        assert (none.data, len(some.data)) == ([], 1), "while any is left a message may be sent, then none"
        left = [await stream.run(SMALL) for _ in range(3)]
        assert (none.data, len(some.data)) == ([], 1)
        stream.credit(some, some.size - 1)  # its debt, and nothing more
        left += [await stream.run(SMALL) for _ in range(3)]
        assert {outcome.code for outcome in left} == {"OK"}
        assert len(some.data) == 1
        stream.credit(some, 1)
        await stream.until(lambda: len(some.data) == 2)
        stream.credit(none, 2**63)
        stream.credit(some, 2**63)
        assert [outcome.code for outcome in await stream.finish(none, some)] == ["OK", "OK"]
        assert await stream.goodbye() == ("OK", "")


async def test_a_run_whose_reader_is_slow_is_sent_what_its_credit_covers() -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        first = 64 * 1024
        # More than two deltas' worth, however many turns are joined to one.
        run = stream.start({"turns": 1600, "tokens_per_turn": 200, "layers": 0}, credit=first)
        given = first
        while run.end is None:
            before = run.size
            await stream.until(lambda before=before: run.size > before or run.end is not None)  # type: ignore[misc]
            assert run.size - len(run.data[-1]) < given, "it is sent while any credit is left, and not then"
            while run.size >= given:
                given += first
                stream.credit(run, first)
        assert run.outcome.code == "OK"
        assert run.size > 2**21
        assert len(run.data) > 2
        stream.drop()


# Requests that are large, or go wrong.


async def test_while_a_large_request_is_read_the_stream_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    go, here = threading.Event(), threading.Semaphore(0)
    read = entrance.Entrance.read

    def slow(self: entrance.Entrance, request: Any, deadline: float | None) -> Any:
        if request.ByteSize() > BIG_REQUEST_BYTES:
            assert threading.current_thread() is not threading.main_thread()
            here.release()
            assert go.wait(SECONDS)
        return read(self, request, deadline)

    monkeypatch.setattr(entrance.Entrance, "read", slow)
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        big = '{"turns": 1}' + " " * 300 * 1024
        credited, left, dropped = (stream.start(big, credit=0) for _ in range(3))
        stream.credit(credited, 2**40)
        stream.leave(left)
        await stream.finish(left)
        assert left.outcome.reason == "CALLER_LOST"
        assert (await stream.run(SMALL)).code == "OK"
        go.set()
        assert (await stream.finish(credited))[0].code == "OK"
        assert subject.runner.counters["replied"] == 2, "what was left was never admitted"
        assert not dropped.data
        stream.drop()


async def test_large_requests_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go, reads = threading.Event(), list[str]()
    read = entrance.Entrance.read

    def slow(self: entrance.Entrance, request: Any, deadline: float | None) -> Any:
        reads.append(request.request_id)
        assert go.wait(SECONDS)
        return read(self, request, deadline)

    monkeypatch.setattr(entrance.Entrance, "read", slow)
    monkeypatch.setattr(session_runs, "MAX_READS", 2)
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        runs = [stream.start('{"turns": 1}' + " " * 300 * 1024) for _ in range(8)]
        await stream.send()
        await subject.until(lambda: len(reads) == 2)
        [served] = subject.server.sessions._streams.values()
        assert len(served._runs._reads) == 2
        assert len(served._runs._runs) == 3, "the rest waits to be taken up"
        go.set()
        assert {outcome.code for outcome in await stream.finish(*runs)} == {"OK"}
        stream.drop()


async def test_a_stream_that_ends_while_requests_are_read_starts_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, here = threading.Event(), threading.Event()
    read = entrance.Entrance.read

    def slow(self: entrance.Entrance, request: Any, deadline: float | None) -> Any:
        here.set()
        assert go.wait(SECONDS)
        return read(self, request, deadline)

    monkeypatch.setattr(entrance.Entrance, "read", slow)
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        stream.start('{"turns": 1}' + " " * 300 * 1024)
        await stream.send()
        await asyncio.to_thread(here.wait, SECONDS)
        stream.drop()
        await subject.until_away()
        go.set()
        monkeypatch.undo()
        assert (await subject.client.run(SMALL)).code == "OK"
        assert subject.runner.counters["replied"] == 1


async def test_a_request_over_the_limit_fails_alone() -> None:
    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        over = stream.start(SMALL, owner="x" * (MIB + 1))
        other = stream.start(SMALL)
        outcomes = await stream.finish(over, other)
        assert [outcome.reason for outcome in outcomes] == ["MESSAGE_TOO_LARGE", ""]
        assert "by Run" in outcomes[0].message
        assert outcomes[0].metadata["limit"] == str(MIB)
        stream.drop()


async def test_a_fault_of_the_worker_fails_its_run_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: Any) -> Any:
        raise ZeroDivisionError("nobody foresaw it")

    async with serving_worker() as subject:
        stream = await RunStream(subject).open()
        with monkeypatch.context() as patch:
            patch.setattr(entrance.Entrance, "read", faulty)
            outcomes = [await stream.run(SMALL), await subject.client.run(SMALL)]
            outcomes += [await stream.run('{"turns": 1}' + " " * 300 * 1024)]
        assert {(outcome.code, outcome.reason) for outcome in outcomes} == {("INTERNAL", "INTERNAL")}
        assert len({outcome.message for outcome in outcomes}) == 1
        assert caplog.text.count("a fault of the worker itself") == 3
        assert (await stream.run(SMALL)).code == "OK"
        stream.drop()


# A client that does not read, or writes nonsense.


def waiting_frames(subject: WorkerSubject, session_id: str = "e" * 32) -> int:
    return len(subject.server.sessions._streams[session_id]._outbox._due)


async def test_refusals_that_are_not_read_hold_up_their_own_stream_only() -> None:
    async with (
        serving_worker() as subject,
        grpc.aio.insecure_channel(subject.server.address, options=NARROW) as narrow,
    ):
        clogged, other = RunStream(subject, narrow), await RunStream(subject).open("f" * 32)
        await clogged.open()
        number = 0

        async def flood() -> None:
            nonlocal number
            while True:
                # Each is refused, for its generation.
                frames = [
                    pb.SessionRequest(open_run=pb.OpenRun(run_number=number + more)) for more in range(1025)
                ]
                number += 1025
                frames[0].more.extend(frames[1:])
                await clogged.session.send_message(frames[0])

        flooding = asyncio.create_task(flood())
        await subject.until(lambda: subject.server.sessions._streams["e" * 32]._outbox.full)
        for _ in range(3):
            assert (await other.run(SMALL)).code == "OK"
            assert waiting_frames(subject) <= 8_193
        served = subject.server.sessions._streams["e" * 32]
        assert sum(len(frame) for frame in served._outbox._due if isinstance(frame, bytes)) < 1.1 * MIB
        assert not served._runs._runs, "the runs themselves are forgotten"
        assert not flooding.done(), "it is held up"
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        clogged.drop()
        other.drop()


async def test_runs_that_end_while_nobody_reads_are_forgotten() -> None:
    async with serving_worker(max_concurrent=2, max_queue=2000) as subject:
        clogged, other = await RunStream(subject).open(), await RunStream(subject).open("f" * 32)
        large = clogged.start({"mebibytes": 16}, environment="large")
        await clogged.send()
        [served] = (s for s in subject.server.sessions._streams.values() if s.session_id == "e" * 32)
        await subject.until(lambda: bool(served._outbox._under_way))
        runs = [clogged.start(ENDLESS) for _ in range(600)]
        await clogged.send()
        await subject.until(lambda: len(served._runs._runs) == 601)
        for run in (large, *runs):
            clogged.leave(run)
        await clogged.send()
        await subject.until(lambda: not served._runs._runs)
        assert (await other.run(SMALL)).code == "OK", "their places are free"
        assert waiting_frames(subject) <= 601 + 2, "their ends, and two admissions"
        outcomes = await clogged.finish(large, *runs)
        assert {outcome.reason for outcome in outcomes} == {"CALLER_LOST"}, "it reads after all"
        assert (await clogged.run(SMALL)).code == "OK"
        clogged.drop()
        other.drop()

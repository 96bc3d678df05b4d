"""SyncEnvClient: the same promises with plain calls."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc_testing
import pytest
from envtrio.v1 import env_service_pb2
from envtrio.v1.env_service_pb2 import CancelOutcome, CancelResponse
from grpc_health.v1 import health_pb2

from env_client import (
    AssemblyError,
    DuplicateRequestError,
    EnvError,
    InternalError,
    InvalidTaskError,
    RunDeadlineError,
    SyncEnvClient,
    UnavailableError,
    ValidationError,
    sync_stream,
)
from tests.helpers.deltas import episode_stream, growth, opening, reply
from tests.helpers.no_session import NoSession
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Send, Wait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envtrio.v1.delta_pb2 import DeltaStream, TraceDelta

    from env_client.courier import CancelCourier
    from tests.helpers.scripted_service import ScriptedService

RUN = "0123456789abcdef0123456789abcdef"
SERVICE = env_service_pb2.DESCRIPTOR.services_by_name["EnvService"]
SECONDS = 20


def sends(*messages: DeltaStream | bytes) -> list[Send]:
    return [Send(message) for message in messages]


def test_runs_an_episode(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    seen: list[int] = []
    with SyncEnvClient(service.address) as client:
        episode = client.run({}, on_delta=lambda delta: seen.append(delta.seq))
    assert len(episode.traces[0].nodes) == 3
    assert seen == [0, 1, 2]
    assert service.cancels == []


async def test_works_while_an_event_loop_runs(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    with SyncEnvClient(service.address) as client:
        assert client.run({}).head.ok


def test_streams(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    with SyncEnvClient(service.address) as client, client.stream({}, request_id=RUN) as stream:
        assert stream.request_id == RUN
        assert next(stream).seq == 0
        assert [delta.seq for delta in stream] == [1, 2]
        assert stream.episode is stream.result()
        assert stream.received_bytes > 0
    assert service.cancels == []


def test_leaving_the_stream_cancels(service: ScriptedService) -> None:
    service.on_run(*sends(opening()), Hang())
    with SyncEnvClient(service.address) as client, client.stream({}, request_id=RUN) as stream:
        next(stream)
    assert service.cancelled_ids() == [RUN]
    assert service.cancels[0].cause == "the caller left the stream"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt], ids=["a callback raises", "Ctrl-C"])
def test_what_breaks_out_of_a_run_cancels(service: ScriptedService, error: type[BaseException]) -> None:
    service.on_run(*sends(*episode_stream()))

    def break_out(_delta: TraceDelta) -> None:
        raise error("broke out")

    with SyncEnvClient(service.address) as client, pytest.raises(error, match="broke out"):
        client.run({}, request_id=RUN, on_delta=break_out)
    assert service.cancelled_ids() == [RUN]


class Awaited:
    """Shows only by what it returns that it must be awaited."""

    async def __call__(self, _delta: TraceDelta) -> None:
        raise AssertionError("nobody awaits it")


async def asynchronous(_delta: TraceDelta) -> None:
    raise AssertionError("nobody awaits it")


@pytest.mark.parametrize("on_delta", [asynchronous, functools.partial(asynchronous)])
def test_an_asynchronous_callback_is_refused_before_anything_is_sent(
    service: ScriptedService, on_delta: Any
) -> None:
    with (
        SyncEnvClient(service.address) as client,
        pytest.raises(TypeError, match=r"asynchronous function, which .* cannot await; give a plain one"),
    ):
        client.run({}, on_delta=on_delta)
    assert service.runs == []


@pytest.mark.parametrize("on_delta", [Awaited(), lambda delta: asynchronous(delta)])
def test_one_that_shows_it_when_it_is_called_ends_the_run(service: ScriptedService, on_delta: Any) -> None:
    service.on_run(*sends(*episode_stream()))
    with SyncEnvClient(service.address) as client, pytest.raises(TypeError, match="use EnvClient"):
        client.run({}, request_id=RUN, on_delta=on_delta)
    assert service.cancelled_ids() == [RUN]


def test_result_refuses_one_and_the_run_goes_on(service: ScriptedService) -> None:
    service.on_run(*sends(*episode_stream()))
    with SyncEnvClient(service.address) as client, client.stream({}) as stream:
        with pytest.raises(TypeError, match="asynchronous"):
            stream.result(asynchronous)
        assert stream.result().head.ok


def test_deadlines(service: ScriptedService) -> None:
    service.on_run(*sends(opening()), Hang())
    with (
        SyncEnvClient(service.address, timeout=0.2) as client,
        pytest.raises(RunDeadlineError, match=r"0\.2 s"),
    ):
        client.run({}, request_id=RUN)
    assert service.cancelled_ids() == [RUN]


def test_the_deadline_is_looked_at_between_callbacks(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on_run(*sends(*episode_stream()))
    now = [0.0]
    monkeypatch.setattr(sync_stream, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with SyncEnvClient(service.address) as client, pytest.raises(RunDeadlineError, match="of 50 s"):
        client.run({}, request_id=RUN, timeout=50, on_delta=lambda _: now.__setitem__(0, 50.0))
    assert service.cancelled_ids() == [RUN]


def wrong_mask() -> list[DeltaStream | bytes]:
    first = opening()
    first.deltas[0].append.nodes[0].mask = b"\2\0"
    return [first, reply(first)]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([b"\xff\xff\xff"], AssemblyError),
        ([opening(), growth(2)], AssemblyError),
        (wrong_mask(), ValidationError),
    ],
    ids=["undecodable", "gap", "failed check"],
)
def test_what_cannot_be_used_cancels(
    service: ScriptedService, messages: list[DeltaStream | bytes], error: type[EnvError]
) -> None:
    service.on_run(*sends(*messages))
    with SyncEnvClient(service.address) as client, client.stream({}, request_id=RUN) as stream:
        with pytest.raises(error):
            stream.result()
        with pytest.raises(error):  # The failure stays.
            next(stream)
    assert service.cancelled_ids() == [RUN]


@pytest.mark.parametrize(
    ("end", "error", "told"),
    [
        (End(grpc.StatusCode.UNKNOWN), InternalError, True),
        (End(grpc.StatusCode.INTERNAL, "HOOK_FAILED"), InternalError, False),
        (End(grpc.StatusCode.ALREADY_EXISTS), DuplicateRequestError, False),
    ],
)
def test_statuses(service: ScriptedService, end: End, error: type[EnvError], told: bool) -> None:
    service.on_run(end)
    with SyncEnvClient(service.address) as client, pytest.raises(error):
        client.run({}, request_id=RUN)
    assert service.cancelled_ids() == [RUN] * told


def test_malformed_tasks_do_not_leave(service: ScriptedService) -> None:
    tasks: list[Any] = [[], "text", {"x": float("nan")}]
    with SyncEnvClient(service.address) as client:
        for task in tasks:
            with pytest.raises(InvalidTaskError):
                client.run(task)
    assert service.runs == []


def test_a_stream_must_be_entered(service: ScriptedService) -> None:
    with SyncEnvClient(service.address) as client, pytest.raises(RuntimeError, match="with client"):
        client.stream({}).result()


def test_runs_from_several_threads(service: ScriptedService) -> None:
    go_on = threading.Event()
    first, *rest = episode_stream()
    for _ in range(4):
        service.on_run(Send(first), Wait(go_on), *sends(*rest))
    with SyncEnvClient(service.address) as client, ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(client.run, {}) for _ in range(4)]
        go_on.set()
        assert all(run.result(SECONDS).head.ok for run in runs)


def test_health_describe_and_cancel(service: ScriptedService) -> None:
    service.on_cancel(CancelOutcome.CANCEL_OUTCOME_DISCARDED)
    service.serve(health_pb2.HealthCheckResponse.NOT_SERVING)
    with SyncEnvClient(service.address) as client:
        assert client.health() == "NOT_SERVING"
        with pytest.raises(UnavailableError, match="at last: NOT_SERVING"):
            client.wait_until_ready(0.2)
        service.serve(health_pb2.HealthCheckResponse.SERVING)
        client.wait_until_ready()
        assert client.health() == "SERVING"
        assert client.describe().role == "worker"
        assert client.cancel(RUN) == "DISCARDED"
        with pytest.raises(EnvError, match="32 lower-case"):
            client.cancel("foreign")


def test_a_remembered_or_unanswered_cancel_goes_on_in_the_background(service: ScriptedService) -> None:
    gone, remembered = End(grpc.StatusCode.UNAVAILABLE), CancelOutcome.CANCEL_OUTCOME_REMEMBERED
    aborted = CancelOutcome.CANCEL_OUTCOME_ABORTED
    service.on_cancel(remembered, aborted)
    with SyncEnvClient(service.address) as client:
        assert client.cancel(RUN) == "REMEMBERED"
    assert service.cancelled_ids() == [RUN] * 2
    service.on_cancel(gone, aborted)
    with SyncEnvClient(service.address) as client, pytest.raises(UnavailableError, match="run 01234567"):
        client.cancel(RUN)
    assert service.cancelled_ids() == [RUN] * 4


def test_a_server_that_is_not_there() -> None:
    with SyncEnvClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match="no word from the server"):
            client.health()
        with pytest.raises(UnavailableError, match=NOT_REACHED):
            client.wait_until_ready(0.2)


NOT_REACHED = r"at last: not reached \(.*Connection refused\); see that a broker or worker is up there"


class Told:
    """In place of a courier: what it was told to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def send(self, request_id: str, cause: str) -> None:
        self.sent.append((request_id, cause))

    def close(self, _timeout: float) -> None:
        """Nothing waits."""


@pytest.fixture
def channel() -> Any:
    return grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def by_hand(channel: Any, told: Told, **arguments: Any) -> SyncEnvClient:
    courier: CancelCourier | Any = told
    session: Any = NoSession()
    return SyncEnvClient("by-hand:1", channel=channel, courier=courier, session=session, **arguments)


def test_the_request_that_leaves(channel: Any, threads: ThreadPoolExecutor) -> None:
    told = Told()
    with by_hand(channel, told, env="synthetic", sampling={"temperature": 0.5}, owner="o") as client:
        run = threads.submit(client.run, {"n": 1}, request_id=RUN, group_id="g")
        _, request, rpc = channel.take_unary_stream(SERVICE.methods_by_name["Run"])
        rpc.send_initial_metadata(())
        for message in episode_stream():
            rpc.send_response(message.SerializeToString())
        rpc.terminate((), grpc.StatusCode.OK, "")
        assert run.result(SECONDS).head.ok
    assert (request.request_id, request.protocol_generation, request.environment) == (RUN, 1, "synthetic")
    assert (request.task_json, request.group_id, request.owner) == ('{"n": 1}', "g", "o")
    assert request.sampling.temperature == 0.5
    assert not request.HasField("model")
    assert told.sent == []


def test_a_reply_without_ok_is_taken_back(channel: Any, threads: ThreadPoolExecutor) -> None:
    told = Told()
    with by_hand(channel, told) as client:
        run = threads.submit(client.run, {}, request_id=RUN)
        _, _, rpc = channel.take_unary_stream(SERVICE.methods_by_name["Run"])
        for message in episode_stream():
            rpc.send_response(message.SerializeToString())
        rpc.terminate((), grpc.StatusCode.UNAVAILABLE, "the connection broke")
        with pytest.raises(UnavailableError, match="the connection broke"):
            run.result(SECONDS)
    assert [request_id for request_id, _ in told.sent] == [RUN]


def test_cancel_names_the_run(channel: Any, threads: ThreadPoolExecutor) -> None:
    with by_hand(channel, Told()) as client:
        cancel = threads.submit(client.cancel, RUN)
        _, request, rpc = channel.take_unary_unary(SERVICE.methods_by_name["Cancel"])
        rpc.terminate(
            CancelResponse(outcome=CancelOutcome.CANCEL_OUTCOME_TOO_LATE), (), grpc.StatusCode.OK, ""
        )
        assert cancel.result(SECONDS) == "TOO_LATE"
    assert (request.request_id, request.protocol_generation) == (RUN, 1)

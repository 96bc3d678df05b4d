"""N tasks asked for give N outcomes, counted and written."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1.episode_pb2 import Episode
from grpc_health.v1 import health_pb2

from env_client import DrainingError, EnvClient, EnvError, UnavailableError, batch, readiness
from env_client.batch import Batch, TasksError, read_tasks
from env_client.progress import PlainDisplay, RichDisplay, open_display, progress_text
from env_client.tally import Group, Tally, format_bytes
from tests.helpers.deltas import episode_stream, opening, reply
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Reach, ScriptedService, Send, Wait

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 20.0


class Quiet:
    """Keeps what it was shown."""

    interval_seconds = 1000.0

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.said: list[str] = []
        self.on_say: Callable[[], None] = lambda: None

    def show(self, tally: Tally) -> None:
        self.shown.append(progress_text(tally, 2.0))

    def say(self, text: str) -> None:
        self.said.append(text)
        self.on_say()


async def test_each_run_has_one_outcome(service: ScriptedService) -> None:
    failed = opening()
    for _ in range(2):
        service.on_run(*(Send(message) for message in episode_stream(2, reward=0.5)), script="good")
    service.on_run(Send(failed), Send(reply(failed, ok=False)), script="failed")
    service.on_run(End(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST"), script="lost")
    tasks = [
        {"script": "good", "dataset": "maths"},
        {"script": "failed"},
        {"script": "lost", "dataset": "maths"},
    ]
    tally, out, display = Tally(4), io.StringIO(), Quiet()
    async with EnvClient(service.address) as client:
        await Batch(client, tasks, tally, out).run(2, display)
    lines = sorted((json.loads(line) for line in out.getvalue().splitlines()), key=lambda line: line["index"])
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert [line.get("ok", line.get("reason")) for line in lines] == [True, False, "WORKER_LOST", True]
    assert {line["request_id"] for line in lines} == {run.request_id for run in service.runs}
    assert (lines[2]["environment"], lines[2]["task"]) == (None, tasks[2])
    assert lines[1]["reward"] is None
    assert (tally.done, tally.failed, tally.exceptions, tally.turns) == (4, 1, 1, 4)
    assert tally.received_bytes > 0
    assert tally.by_outcome == {
        "ok": Group(2, 4, 2, 1.0),
        "failed": Group(1, 0, 0, 0.0),
        "WorkerLostError": Group(1, 0, 0, 0.0),
    }
    assert {kind: group.outcomes for kind, group in tally.by_kind.items()} == {"maths": 3, "synthetic": 1}
    assert display.shown[-1].startswith("4/4 episodes, 2.0 episodes/s, 1 failed, 1 exceptions, ")


@pytest.mark.parametrize(
    ("served", "kind"), [(["maths"], "maths"), (["maths", "chess"], "(unknown)"), ([], "(unknown)")]
)
async def test_a_run_that_named_no_environment_and_failed_was_of_the_only_one(
    service: ScriptedService, served: list[str], kind: str
) -> None:
    for name in served:
        service.description.environments.add(name=name)
    service.on_run(End(grpc.StatusCode.INTERNAL, "HOOK_FAILED"))
    tally = Tally(1)
    async with EnvClient(service.address) as client:
        await Batch(client, [{}], tally, None).run(1, Quiet())
    assert any(line.split() == [kind, "1", "0", "-"] for line in tally.summary().splitlines())


async def test_nobody_is_asked_for_the_only_environment_where_an_episode_tells_it_or_a_run_did(
    service: ScriptedService,
) -> None:
    tallies = []
    for env in (None, "synthetic"):
        service.on_run(End(grpc.StatusCode.INTERNAL, "HOOK_FAILED"))
        service.on_run(*(Send(message) for message in episode_stream(1)))
        tallies.append(Tally(2))
        async with EnvClient(service.address, env=env) as client:
            await Batch(client, [{}], tallies[-1], None, env).run(1, Quiet())
    assert [any("synthetic  " in line for line in tally.summary().splitlines()) for tally in tallies] == [
        True
    ] * 2
    assert not any("(unknown)" in tally.summary() for tally in tallies)
    assert service.describes == 0


async def test_runs_that_were_not_sent_wait_for_a_server_that_is_unavailable(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_SAID_AFTER_SECONDS", 0.0)
    states = health_pb2.HealthCheckResponse
    came, go_on = threading.Event(), threading.Event()
    service.on_run(Reach(came), Wait(go_on), End(grpc.StatusCode.UNAVAILABLE))  # it may have begun
    for _ in range(3):
        service.on_run(*(Send(message) for message in episode_stream(1)))
    tally, display = Tally(4), Quiet()
    async with EnvClient(service.address) as client:
        running = asyncio.create_task(Batch(client, [{}], tally, None).run(1, display))
        assert await asyncio.to_thread(came.wait, SECONDS)
        service.serve(states.NOT_SERVING)
        display.on_say = lambda: service.serve(states.SERVING)
        go_on.set()
        await asyncio.wait_for(running, SECONDS)
    assert {name: group.outcomes for name, group in tally.by_outcome.items()} == {
        "UnavailableError": 1,
        "ok": 3,
    }
    assert len(service.runs) == 4
    assert "takes no runs (run" in display.said[-2]
    assert display.said[-2].endswith("those not sent wait for it, up to 30 s")
    assert display.said[-1] == f"{service.address} takes runs"


async def test_runs_are_not_sent_to_a_server_that_does_not_come_back(service: ScriptedService) -> None:
    service.serve(health_pb2.HealthCheckResponse.NOT_SERVING)
    tally, out = Tally(5), io.StringIO()
    async with EnvClient(service.address) as client:
        batch = Batch(client, [{}], tally, out, wait_seconds=0.05)
        await asyncio.wait_for(batch.run(2, Quiet()), SECONDS)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["error"] for line in lines] == ["UnavailableError"] * 5
    assert all("not sent: " in line["message"] for line in lines)
    assert not service.runs
    assert not service.cancels


async def test_the_loss_of_one_worker_holds_up_no_other_run(service: ScriptedService) -> None:
    came, go_on = threading.Event(), threading.Event()
    service.on_run(Reach(came), Wait(go_on), End(grpc.StatusCode.UNAVAILABLE, "WORKER_LOST"))
    service.on_run(*(Send(message) for message in episode_stream(1)))
    tally = Tally(2)
    async with EnvClient(service.address) as client:
        running = asyncio.create_task(Batch(client, [{}], tally, None).run(1, Quiet()))
        assert await asyncio.to_thread(came.wait, SECONDS)
        service.serve(health_pb2.HealthCheckResponse.NOT_SERVING)
        go_on.set()
        await asyncio.wait_for(running, SECONDS)
    assert set(tally.by_outcome) == {"WorkerLostError", "ok"}


async def test_lanes_are_bounded_and_nothing_need_be_written(service: ScriptedService) -> None:
    for _ in range(5):
        service.on_run(*(Send(message) for message in episode_stream(1)))
    tally = Tally(5)
    async with EnvClient(service.address) as client:
        await Batch(client, [{}], tally, None).run(100, Quiet())
    assert tally.done == 5


async def test_a_disk_that_is_full_ends_the_batch(service: ScriptedService) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError("no space left")

    service.on_run(*(Send(message) for message in episode_stream(1)))
    tally = Tally(1)
    async with EnvClient(service.address) as client:
        with pytest.raises(ExceptionGroup):
            await Batch(client, [{}], tally, Full()).run(1, Quiet())
    assert tally.done == 1


async def test_an_outcome_that_cannot_be_written_is_one_outcome_and_ends_no_batch(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = batch.outcome_line

    def unwritable(index: int, request_id: str, environment: str, task: Any, outcome: Any) -> str:
        if index == 1 and not isinstance(outcome, Exception):
            raise OverflowError("date value out of range")
        return write(index, request_id, environment, task, outcome)

    monkeypatch.setattr(batch, "outcome_line", unwritable)
    for _ in range(4):
        service.on_run(*(Send(message) for message in episode_stream(1)))
    tally, out = Tally(4), io.StringIO()
    async with EnvClient(service.address) as client:
        await Batch(client, [{}], tally, out).run(2, Quiet())
    lines = sorted((json.loads(line) for line in out.getvalue().splitlines()), key=lambda line: line["index"])
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert "date value out of range" in lines[1]["message"]
    assert (lines[1]["environment"], lines[1]["task"]) == ("synthetic", {})
    assert tally.done == 4


def test_tasks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"a": 1}\n\n  {"b": "ü"}\n', encoding="utf-8")
    assert read_tasks(str(path)) == [{"a": 1}, {"b": "ü"}]
    path.write_text('{"a": 1}\n', encoding="utf-8-sig")
    assert read_tasks(str(path)) == [{"a": 1}]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"a": 1}\n{"a":\n', "line 2, column 6: Expecting value; put one whole JSON object on each line"),
        (b"[1]\n", "line 1: found a JSON list; put one whole"),
        (b"\n\n", "has no task"),
        (b"\xff\xfe", "JSON lines in UTF-8"),
        (b'{"a": 1,\n "b": 2}\n', "line 1, column 9: Expecting property name"),
        (b"[" * 100_000, "line 1: .*recursion"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "line 1: .*digits"),
        (b'{"a": 1}\n{"a": NaN}\n', "line 2: task: .*not JSON compliant.*without NaN and Infinity"),
        (b'{"a": [-Infinity]}', "line 1: task: .*not JSON compliant"),
        (b'{"a": 1e999}', "line 1: task: .*not JSON compliant"),
        (b'{"a": "\\ud800"}', "line 1: task: .*surrogates"),
        (None, "No such file"),
    ],
)
def test_tasks_that_cannot_be_used(tmp_path: Path, content: bytes | None, found: str) -> None:
    path = tmp_path / "tasks.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TasksError, match=found) as caught:
        read_tasks(str(path))
    assert str(path) in str(caught.value)


def episode_with(info: dict[str, str], *, simulated: bool) -> Any:
    from env_client import EpisodeAssembly

    assembly = EpisodeAssembly()
    for message in episode_stream(1, reward=0.25):
        assembly.apply(message)
    episode = assembly.finish()
    episode.traces[0].info_json.update(info)
    for call in episode.traces[0].calls:
        call.simulated = simulated
    return episode


def test_the_summary() -> None:
    tally = Tally(3)
    tally.add_episode("maths", episode_with({"training_array_bytes": "1048576"}, simulated=True))
    tally.add_exception("maths", ValueError("x"))
    tally.received_bytes = 2048
    text = tally.summary()
    assert "2 of 3 runs have an outcome, 1 of them an exception" in text
    assert "ok                 1      1        0.250" in text
    assert "ValueError         1      0            -" in text
    # The mean is over what was judged: an exception is no zero.
    assert "maths         2      1        0.250" in text
    assert "received: 2.0 KiB" in text
    assert "training arrays kept by the workers: 1.0 MiB" in text
    assert "simulated model (right at a seeded rate)" in text


def test_the_summary_has_the_first_message_of_each_kind_of_failure() -> None:
    tally = Tally(4)
    tally.add_exception("maths", ValueError("the first"))
    tally.add_exception("maths", ValueError("the second"))
    failed = episode_with({}, simulated=False)
    failed.head.ok = False
    failed.head.errors.add(type="KeyError", message="'answer'")
    tally.add_episode("maths", failed)
    lines = tally.summary().splitlines()
    assert "first ValueError: the first" in lines
    assert "first failed: KeyError: 'answer'" in lines
    assert not any("second" in line for line in lines)


def test_the_summary_says_no_more_than_there_is() -> None:
    tally = Tally(1)
    tally.add_episode("k", episode_with({"training_array_bytes": '"many"'}, simulated=False))
    assert "training arrays" not in tally.summary()
    assert "simulated" not in tally.summary()


def test_bytes_for_people() -> None:
    sizes = [0, 1023, 1024, 1024**2 * 1.5, 1024**3, 1024**4 * 2]
    assert [format_bytes(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "1.0 GiB",
        "2.0 TiB",
    ]


def test_displays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    file, terminal = io.StringIO(), Terminal()
    with open_display(file, 2) as display:
        assert isinstance(display, PlainDisplay)
        display.show(Tally(2))
    assert file.getvalue().startswith("0/2 episodes, ")
    with open_display(terminal, 2) as display:
        assert isinstance(display, RichDisplay)
        display.show(Tally(2))
        display.say("a [word] above")
    assert "0/2 episodes" in terminal.getvalue()
    assert "a [word] above" in terminal.getvalue()
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    with open_display(terminal, 2) as display:
        assert isinstance(display, PlainDisplay)
    assert progress_text(Tally(1), 0.0).startswith("0/1 episodes, 0.0 episodes/s")


async def test_a_run_that_a_full_queue_refused_is_sent_again_under_a_new_id(service: ScriptedService) -> None:
    full = End(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=1)
    service.on_run(full)
    for _ in range(2):
        service.on_run(*(Send(message) for message in episode_stream(1)))
    tally, display = Tally(2), Quiet()
    async with EnvClient(service.address) as client:
        await Batch(client, [{}], tally, None).run(1, display)
    assert {name: group.outcomes for name, group in tally.by_outcome.items()} == {"ok": 2}
    assert len({run.request_id for run in service.runs}) == 3
    assert not service.cancels
    (said,) = display.said
    assert f"{service.address} takes no more runs now (run " in said
    assert said.endswith("those that it refuses are sent again, for up to 30 s each")


@pytest.mark.parametrize(
    "end",
    [
        End(grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", retry_seconds=1),
        End(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=31),
        End(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    ],
)
async def test_what_would_end_the_same_way_or_later_than_it_may_is_not(
    service: ScriptedService, end: End
) -> None:
    service.on_run(end)
    tally, display = Tally(1), Quiet()
    async with EnvClient(service.address) as client:
        await Batch(client, [{}], tally, None).run(1, display)
    assert (tally.exceptions, len(service.runs), display.said) == (1, 1, [])


@pytest.mark.parametrize("reason", ["DRAINING", "NO_WORKER_READY", "NOT_ADMITTED"])
async def test_a_run_that_was_refused_before_it_began_is_sent_again_when_runs_are_taken(
    service: ScriptedService, reason: str
) -> None:
    states = health_pb2.HealthCheckResponse
    came, go_on = threading.Event(), threading.Event()
    service.on_run(Reach(came), Wait(go_on), End(grpc.StatusCode.UNAVAILABLE, reason))
    service.on_run(End(grpc.StatusCode.UNAVAILABLE, reason))
    for _ in range(2):
        service.on_run(*(Send(message) for message in episode_stream(1)))
    tally, display = Tally(2), Quiet()
    async with EnvClient(service.address) as client:
        running = asyncio.create_task(Batch(client, [{}], tally, None).run(1, display))
        assert await asyncio.to_thread(came.wait, SECONDS)
        service.serve(states.NOT_SERVING)
        display.on_say = lambda: service.serve(states.SERVING)
        go_on.set()
        await asyncio.wait_for(running, SECONDS)
    assert {name: group.outcomes for name, group in tally.by_outcome.items()} == {"ok": 2}
    assert len({run.request_id for run in service.runs}) == 4
    assert not service.cancels
    (said,) = [text for text in display.said if "takes no more runs now" in text]
    assert f"UNAVAILABLE {reason}: scripted" in said


async def test_a_server_that_only_refuses_is_asked_no_longer_than_one_waits(service: ScriptedService) -> None:
    service.on_run(End(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=60))
    tally = Tally(1)
    async with EnvClient(service.address) as client:
        await Batch(client, [{}], tally, None, wait_seconds=SECONDS).run(1, Quiet())
    assert set(tally.by_outcome) == {"DrainingError"}
    assert len(service.runs) == 1


class Ready:
    """Says at once whether runs may be sent: by what each `wait` raises, None where they may."""

    def __init__(self, *answers: EnvError | None) -> None:
        self.answers = list(answers)

    async def wait(self) -> None:
        if (answer := self.answers.pop(0)) is not None:
            raise answer

    def heard(self, error: Exception) -> None:
        """Knows it already."""


async def test_what_an_attempt_takes_is_no_time_in_which_a_run_was_refused(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "pause_seconds", lambda _: 0.0)
    came, go_on = threading.Event(), threading.Event()
    draining = End(grpc.StatusCode.UNAVAILABLE, "DRAINING")
    service.on_run(draining)
    service.on_run(Reach(came), Wait(go_on), draining)
    service.on_run(*(Send(message) for message in episode_stream(1)))
    ready: Any = Ready(None, None, None)
    async with EnvClient(service.address) as client:
        runs = Batch(client, [{}], Tally(1), None, wait_seconds=0.5)
        running = asyncio.create_task(runs._sent({}, ready, Quiet()))
        assert await asyncio.to_thread(came.wait, SECONDS)
        await asyncio.sleep(0.6)  # longer than one waits
        go_on.set()
        _, outcome = await asyncio.wait_for(running, SECONDS)
    assert isinstance(outcome, Episode)


async def test_a_refusal_stays_the_outcome_where_nothing_is_sent_any_more(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "pause_seconds", lambda _: 0.0)
    service.on_run(End(grpc.StatusCode.UNAVAILABLE, "DRAINING"))
    ready: Any = Ready(None, UnavailableError("gone", code="UNAVAILABLE"))
    async with EnvClient(service.address) as client:
        runs = Batch(client, [{}], Tally(1), None)
        request_id, outcome = await runs._sent({}, ready, Quiet())
    assert isinstance(outcome, DrainingError)
    assert [run.request_id for run in service.runs] == [request_id]


async def test_what_was_never_sent_says_that_it_has_not_begun() -> None:
    tally, out = Tally(2), io.StringIO()
    async with EnvClient("127.0.0.1:1") as client:
        await Batch(client, [{}], tally, out, wait_seconds=0.1).run(1, Quiet())
    for line in out.getvalue().splitlines():
        outcome = json.loads(line)
        assert (outcome["error"], outcome["reason"]) == ("UnavailableError", "NOT_ADMITTED")
        assert "not sent: " in outcome["message"]
    assert tally.exceptions == 2

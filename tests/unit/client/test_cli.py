"""The command `env-client`, as a process and by its parts."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc
import pytest
from envtrio.v1.env_service_pb2 import CancelOutcome
from grpc_health.v1 import health_pb2

from env_client.cli import main
from env_client.config import COMMANDS, ClientSettings, SettingsError, settings_table
from env_client.parser import make_parser
from env_client.request import Endpoint
from tests.helpers.deltas import episode_stream, opening, reply
from tests.helpers.scripted_end import End
from tests.helpers.scripted_service import Hang, Reach, ScriptedService, Send

if TYPE_CHECKING:
    from pathlib import Path

RUN = "0123456789abcdef0123456789abcdef"
SECONDS = 50


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "env_client", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **variables},
    )


def test_run_writes_a_line_for_each_outcome(service: ScriptedService, tmp_path: Path) -> None:
    for _ in range(2):
        service.on_run(*(Send(message) for message in episode_stream(2)), script="good")
    service.on_run(End(grpc.StatusCode.INTERNAL, "HOOK_FAILED"), script="bad")
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "out.jsonl"
    tasks.write_text('{"script": "good", "dataset": "maths"}\n{"script": "bad"}\n', encoding="utf-8")
    finished = command(
        "run", "--broker", service.address, "--env", "synthetic", "--tasks", str(tasks), "--out", str(out),
        "--count", "3", "--concurrency", "2", "--timeout", "30", "--sampling", '{"temperature": 0.5}',
    )  # fmt: skip
    assert finished.returncode == 1, finished.stderr
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted(line["index"] for line in lines) == [0, 1, 2]
    (failed,) = [line for line in lines if "error" in line]
    assert (failed["error"], failed["environment"]) == ("HookFailedError", "synthetic")
    assert (failed["index"], failed["task"]) == (1, {"script": "bad"})
    assert {line["request_id"] for line in lines} == {run.request_id for run in service.runs}
    assert "3 of 3 runs have an outcome, 1 of them an exception" in finished.stdout
    assert "simulated model (right at a seeded rate)" in finished.stdout
    assert "3/3 episodes, " in finished.stderr
    assert {run.environment for run in service.runs} == {"synthetic"}
    assert {run.sampling.temperature for run in service.runs} == {0.5}


def test_run_with_variables_and_standard_output(service: ScriptedService) -> None:
    service.on_run(*(Send(message) for message in episode_stream(1)))
    finished = command("run", ENV_CLIENT_BROKER=service.address, ENV_CLIENT_OUT="-", ENV_CLIENT_OWNER="me")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["ok"]
    assert "1 of 1 runs have an outcome, 0 of them" in finished.stderr
    assert service.runs[0].owner == "me"


@pytest.mark.parametrize("owner", [None, "it's me"])
def test_run_says_how_the_arrays_that_it_leaves_are_freed(
    service: ScriptedService, owner: str | None
) -> None:
    *messages, _ = episode_stream(1)
    messages[-1].deltas[-1].append.info_json["training_arrays"] = '[{"arrays": {"routed_experts": {}}}]'
    service.on_run(*map(Send, (*messages, reply(*messages))))
    service.on_run(*map(Send, episode_stream(1)))
    named = () if owner is None else ("--owner", owner)
    finished = command("run", "--broker", service.address, "--count", "2", "--concurrency", "1", *named)
    assert finished.returncode == 0, finished.stderr
    owners = {run.owner for run in service.runs}
    assert len(owners) == 1, "all runs of a command have one"
    said = finished.stdout.splitlines()[-1]
    assert said.startswith("the training arrays of 1 episode stay in their workers until they are released")
    told = shlex.split(said.partition("with: env-client ")[2])
    assert told == ["release", "--broker", service.address, "--owner", *owners]
    if owner is None:
        assert re.fullmatch("env-client-[0-9a-f]{8}", *owners)
    else:
        assert owners == {owner}


def test_run_says_nothing_of_arrays_where_there_are_none(service: ScriptedService) -> None:
    service.on_run(*map(Send, episode_stream(1)))
    finished = command("run", "--broker", service.address)
    assert "release" not in finished.stdout


def test_run_without_a_server_still_has_its_outcomes(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    finished = command(
        "run", "--broker", "127.0.0.1:1", "--count", "2", "--out", str(out), "--wait-seconds", "0.1"
    )
    assert finished.returncode == 1
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["error"] for line in lines] == ["UnavailableError"] * 2
    assert "not sent: 127.0.0.1:1 was not SERVING within 0.1 s" in lines[0]["message"]
    assert "its cancel" not in finished.stderr, "there was nothing to cancel"


def test_ctrl_c_cancels_the_open_runs(service: ScriptedService) -> None:
    reached = [threading.Event() for _ in range(3)]
    for event in reached:
        service.on_run(Send(opening()), Reach(event), Hang())
    process = subprocess.Popen(
        [sys.executable, "-m", "env_client", "run", "--broker", service.address, "--count", "3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert all(event.wait(SECONDS) for event in reached)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, errors
    assert sorted(service.cancelled_ids()) == sorted(run.request_id for run in service.runs)
    assert "0 of 3 runs have an outcome" in output
    assert "Traceback" not in errors


def test_health(service: ScriptedService, capsys: pytest.CaptureFixture[str]) -> None:
    service.serve(health_pb2.HealthCheckResponse.NOT_SERVING)
    assert main(["health", "--broker", service.address]) == 1
    service.serve(health_pb2.HealthCheckResponse.SERVING)
    assert main(["health", "--broker", service.address]) == 0
    assert capsys.readouterr().out.split() == ["NOT_SERVING", "SERVING"]
    assert main(["health", "--broker", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "UNAVAILABLE" in said
    assert said.endswith("; see that a broker or worker is up at 127.0.0.1:1, or correct --broker\n")


def test_describe(service: ScriptedService, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--broker", service.address]) == 0
    assert json.loads(capsys.readouterr().out)["late_cancel_seconds"] == 60.0


@pytest.mark.parametrize(
    ("outcome", "meaning", "code"),
    [
        ("ABORTED", "the run was waiting or live", 0),
        ("DISCARDED", "its reply had left; the episode is taken back", 0),
        ("TOO_LATE", "the episode was delivered for good", 1),
        ("REMEMBERED", "unknown here; if the run arrives", 0),
    ],
)
def test_cancel(
    outcome: str, meaning: str, code: int, service: ScriptedService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on_cancel(CancelOutcome.Value(f"CANCEL_OUTCOME_{outcome}"))
    assert main(["cancel", RUN, "--broker", service.address]) == code
    assert capsys.readouterr().out.startswith(f"{outcome}\n{meaning}")
    with pytest.raises(SystemExit):
        main(["cancel", "--help"])
    assert f"{outcome}: {meaning}" in capsys.readouterr().out


def test_a_cancel_of_what_is_no_id(service: ScriptedService, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cancel", "foreign", "--broker", service.address]) == 2
    assert "32 lower-case" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["health"], ["describe"], ["cancel", RUN]])
def test_an_address_of_somebody_elses_server_is_told_with_a_next_step(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, options=(("grpc.so_reuseport", 0),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        assert main([*arguments, "--broker", address]) == 1
        server.stop(0).wait(SECONDS)
    said = capsys.readouterr().err
    assert "UNIMPLEMENTED (no word" in said
    assert f"; see that a broker or worker is up at {address}, or correct --broker" in said


@pytest.mark.parametrize("arguments", [["health"], ["describe"], ["health", "--help"]])
def test_a_reader_that_has_read_enough_gets_no_traceback(
    arguments: list[str], service: ScriptedService
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        finished = subprocess.run(
            [sys.executable, "-m", "env_client", *arguments, "--broker", service.address],
            stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_variable_that_is_no_setting_is_named(
    service: ScriptedService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENV_CLIENT_BROKR", "h:1")
    assert main(["health", "--broker", service.address]) == 0
    assert "ENV_CLIENT_BROKR is no setting and has no effect; did you mean ENV_CLIENT_BROKER?" in caplog.text


@pytest.mark.parametrize("package", ["env_client", "env_worker", "env_broker"])
def test_version(package: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", package, "--version"],
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert ran.stdout == f"{package.replace('_', '-')} {version('envtrio')}\n"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["health"], "--broker is not set"),
        (["health", "--broker", "nowhere"], "expected HOST:PORT"),
        (["run", "--broker", "h:1", "--count", "0"], "--count is 0, expected 1 to"),
        (["run", "--broker", "h:1", "--concurrency", "0"], "--concurrency is 0"),
        (["run", "--broker", "h:1", "--timeout", "nan"], "--timeout is nan"),
        (["run", "--broker", "h:1", "--sampling", "{"], "--sampling is '{'"),
        (["run", "--broker", "h:1", "--sampling", "[]"], "--sampling is a JSON list"),
        (["run", "--broker", "h:1", "--tasks", "no/such/file"], "no/such/file"),
        (["run", "--broker", "h:1", "--out", "no/such/file"], "--out no/such/file"),
        (["run", "--broker", "h:1", "--out", "no/such/file"], "make the folder no/such, or name a file that"),
        (["run", "--broker", "h:1", "--out", "."], "Is a directory: '.'; name a file that can be written"),
        (["run", "--broker", "h:1", "--out", ""], "--out '': "),
        (["run", "--broker", "h:1", "--tasks", ""], "--tasks '': "),
        (["run", "--broker", "h:1", "--sampling", '{"top_k": "x"}'], "--sampling: sampling.top_k: found 'x'"),
        (
            ["top", "--broker", "h:1", "--interval-seconds", "0.01"],
            "--interval-seconds is 0.01",
        ),
    ],
)
def test_usage(
    arguments: list[str], found: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENV_CLIENT_BROKER", raising=False)
    assert main(arguments) == 2
    assert found in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND; see env-client --help"),
        (["no-such-command"], "invalid choice: 'no-such-command'"),
        (["top", "--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["run"], "argument --count (ENV_CLIENT_COUNT): invalid int value: '1e3'; see env-client run --help"),
    ],
)
def test_what_argparse_refuses_is_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENV_CLIENT_COUNT", "1e3")
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("name", "there", "not_there"),
    [
        ("run", "to talk to; required [ENV_CLIENT_BROKER]", "--episodes"),
        ("cancel", "to talk to; required [ENV_CLIENT_BROKER]", "--episodes"),
        ("run", "episodes to run, over the tasks in turn; absent: each task once [", "env-client tasks"),
        ("tasks", "tasks to write; absent: as many as the dataset has entries [", "episodes"),
        ("release", "required, but for --episodes [", "is made up"),
    ],
)
def test_help_of_a_command_is_of_no_other(
    name: str, there: str, not_there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert there in text
    assert not_there not in text


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args([*([name] if name else []), "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert not name or ("ENV_CLIENT_BROKER" in text) is (name != "tasks")


def test_the_table_and_the_dataclass_are_one() -> None:
    rows = {setting.name: setting for setting in settings_table()}
    assert rows["wait_seconds"].variable == "ENV_CLIENT_WAIT_SECONDS"
    assert rows["wait_seconds"].default == ClientSettings(broker="h:1").wait_seconds
    assert {*rows["broker"].helps, "tasks"} == set(COMMANDS)
    with pytest.raises(SettingsError, match="ENV_CLIENT_BROKER"):
        ClientSettings()


def test_an_engine_is_named_with_its_dialect_and_key_variable() -> None:
    arguments = ["run", "--broker", "127.0.0.1:1", "--endpoint", "http://engine/v1", "--dialect", "vllm-chat"]
    settings = ClientSettings.from_namespace(
        make_parser().parse_args([*arguments, "--key-variable", "A_KEY"])
    )
    assert settings.model_endpoint() == Endpoint(
        "http://engine/v1", dialect="vllm-chat", key_variable="A_KEY"
    )
    assert ClientSettings(broker="127.0.0.1:1").model_endpoint() is None


def test_tasks_are_not_overwritten_by_their_outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"turns": 1}\n')
    arguments = ["run", "--broker", "h:1", "--tasks", "tasks.jsonl", "--out", str(tmp_path / "tasks.jsonl")]
    assert main(arguments) == 2
    assert "is the file of --tasks; name another, or it would be lost" in capsys.readouterr().err
    assert (tmp_path / "tasks.jsonl").read_text() == '{"turns": 1}\n'


@pytest.mark.parametrize("arguments", [["run", "--broker", "h:1"], ["tasks", "--dataset", "chain_sum"]])
def test_a_file_that_has_something_is_not_overwritten(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("references of arrays that are still held\n")
    link = tmp_path / "link.jsonl"
    link.symlink_to(out)
    for path in (out, link):
        assert main([*arguments, "--out", str(path)]) == 2
        said = f"--out {path}: it is there and has 41 bytes, which are not overwritten; name another file, or"
        assert said in capsys.readouterr().err
    assert out.read_text() == "references of arrays that are still held\n"


def test_a_file_that_has_nothing_is_written_and_so_is_what_is_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pipe = tmp_path / "tasks.jsonl", tmp_path / "pipe"
    out.touch()
    os.mkfifo(pipe)
    arguments = ["tasks", "--dataset", "chain_sum", "--count", "1", "--out"]
    assert main([*arguments, str(out)]) == 0
    assert main([*arguments, os.devnull]) == 0
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main([*arguments, str(pipe)]) == 0
    assert os.read(reader, 1_000).decode() == out.read_text()
    os.close(reader)
    assert "1 tasks of chain_sum" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dialect", "key_variable"])
def test_what_is_said_of_an_engine_without_naming_it_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="--endpoint"):
        ClientSettings(broker="127.0.0.1:1", **{name: "x"})

"""The broker's settings and its command line."""

from __future__ import annotations

import pytest

from env_broker.cli import main
from env_broker.config import VARIABLE_PREFIX, BrokerSettings, SettingsError, settings_table
from env_broker.variables import unknown_variables
from env_broker.worker_variables import inherited, not_inherited


def test_flags_beat_variables_and_variables_beat_defaults() -> None:
    variables = {"ENV_BROKER_WORKERS": "3", "ENV_BROKER_ENV": "a, b", "ENV_BROKER_MAX_QUEUE": "7"}
    settings = BrokerSettings.from_arguments(["--workers", "2"], variables)
    assert (settings.workers, settings.environments, settings.max_queue) == (2, ("a", "b"), 7)
    assert settings.lease_seconds == 5.0
    assert settings.session_grace_seconds == 3.0
    assert BrokerSettings.from_arguments(["--env", "c", "--env=d"], {}).environments == ("c", "d")
    assert BrokerSettings.from_arguments([], {"ENV_BROKER_MAX_CONCURRENT": "5"}).max_concurrent == 5


def test_every_setting_has_its_variable() -> None:
    for setting in settings_table():
        assert setting.variable == "ENV_BROKER_" + setting.flag[2:].replace("-", "_").upper()
        assert setting.help


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "8080"], ["--listen", "'8080'", "HOST:PORT"]),
        (["--listen", "http://127.0.0.1:0"], ["--listen", "'http://127.0.0.1:0'", "HOST:PORT"]),
        (["--listen", "127.0.0.1:70000"], ["70000", "65535"]),
        (["--listen", "0.0.0.0:0"], ["encrypted", "--insecure"]),
        (["--workers", "-1"], ["--workers", "-1", "0 to 1000"]),
        (["--workers", "2"], ["--env"]),
        (["--max-queue", "-1"], ["--max-queue"]),
        (["--max-concurrent", "0"], ["--max-concurrent", "1 to"]),
        (["--drain-seconds", "nan"], ["--drain-seconds", "nan"]),
        (["--late-cancel-seconds", "-0.5"], ["--late-cancel-seconds", "-0.5"]),
        (["--session-grace-seconds", "-1"], ["--session-grace-seconds", "-1"]),
        (["--lease-seconds", "1", "--heartbeat-seconds", "1"], ["--lease-seconds", "--heartbeat-seconds"]),
        (["--min-workers", "2"], ["--min-workers is 2", "--max-workers is not given"]),
        (["--max-workers", "2"], ["--max-workers is 2", "--min-workers is not given"]),
        (["--log-level", "loud"], ["--log-level", "'loud'", "debug"]),
    ],
)
def test_wrong_values_are_named(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingsError) as error:
        BrokerSettings.from_arguments(arguments, {})
    assert all(word in str(error.value) for word in words)
    assert main(["serve", *arguments]) == 2
    assert str(error.value) in capsys.readouterr().err


def test_beyond_loopback_only_when_told() -> None:
    assert not BrokerSettings(listen="0.0.0.0:0", insecure=True).loopback
    assert BrokerSettings(listen="[::1]:0").loopback
    assert BrokerSettings(listen="localhost:0").loopback


def test_local_workers_get_what_the_broker_was_given() -> None:
    settings = BrokerSettings(
        workers=1, environments=("a", "name=m:x"), hook="m:h", max_concurrent=3, late_cancel_seconds=2.5
    )
    arguments = settings.worker_arguments("127.0.0.1:9")
    assert arguments[0] == "serve"
    for wanted in (
        *("--listen=127.0.0.1:0", "--broker=127.0.0.1:9", "--exit-with-stdin", "--env=a", "--env=name=m:x"),
        *("--hook=m:h", "--max-concurrent=3", "--late-cancel-seconds=2.5", "--drain-seconds=30.0"),
        *("--linger-seconds=60.0", "--kill-seconds=10.0"),
    ):
        assert wanted in arguments
    bare = BrokerSettings().worker_arguments("127.0.0.1:9")
    assert not any(part.startswith(("--hook", "--max-concurrent", "--late")) for part in bare)
    assert settings.stop_seconds == 100.0


def test_local_workers_hear_how_many_share_the_hosts_memory() -> None:
    elastic = BrokerSettings(min_workers=1, max_workers=3, environments=("a",), hook="array-keeper")
    arguments = elastic.worker_arguments("127.0.0.1:9")
    assert {"--array-workers=3", "--hook=array-keeper"} <= set(arguments)
    lone = BrokerSettings(workers=1, environments=("a",)).worker_arguments("127.0.0.1:9")
    assert not any(part.startswith("--array") for part in lone)


def test_local_workers_inherit_no_address_that_only_one_could_have() -> None:
    variables = {
        "ENV_WORKER_ADVERTISE": "host:1",
        "ENV_WORKER_METRICS": "127.0.0.1:9100",
        "ENV_WORKER_ARRAY_SPILL_DIR": "spill",
        "PATH": "a:0",
    }
    assert set(inherited(variables)) == {"ENV_WORKER_ARRAY_SPILL_DIR", "PATH"}
    assert inherited({"ENV_WORKER_METRICS": "127.0.0.1:0"}) == {"ENV_WORKER_METRICS": "127.0.0.1:0"}
    advertise, metrics = not_inherited(variables)
    assert "the variable ENV_WORKER_ADVERTISE is 'host:1' and is not passed on" in advertise
    assert "the variable ENV_WORKER_METRICS is '127.0.0.1:9100'" in metrics
    assert "with port 0 each picks a free one" in metrics
    assert not_inherited({"ENV_WORKER_METRICS": "127.0.0.1:0", "ENV_WORKER_ADVERTISE": ""}) == []


def test_a_broker_with_local_workers_says_what_it_does_not_pass_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(_: BrokerSettings) -> int:
        return 0

    monkeypatch.setattr("env_broker.serve.serve", serve)
    monkeypatch.setenv("ENV_WORKER_METRICS", "127.0.0.1:9100")
    assert main(["serve"]) == 0
    assert caplog.text == ""
    assert main(["serve", "--workers", "2", "--env", "synthetic"]) == 0
    assert "the variable ENV_WORKER_METRICS is '127.0.0.1:9100' and is not passed on" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], ""),
        (["--workers", "0"], ""),
        (["--workers", "0", "--env", "synthetic"], "--env"),
        (["--env", "synthetic"], "--env"),
        (["--workers", "0", "--env", "synthetic", "--hook", "nomod:x"], "--env, --hook"),
        (["--max-concurrent", "2", "--late-cancel-seconds", "0"], "--max-concurrent, --late-cancel-seconds"),
        (["--isolate", "process"], "--isolate"),
        (["--isolate", "none"], ""),
        (["--workers", "1", "--env", "synthetic", "--hook", "m:x"], ""),
        (["--min-workers", "1", "--max-workers", "2", "--env", "synthetic", "--hook", "m:x"], ""),
    ],
)
def test_a_broker_without_local_workers_says_which_settings_have_no_effect(
    arguments: list[str], flags: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(_: BrokerSettings) -> int:
        return 0

    monkeypatch.setattr("env_broker.serve.serve", serve)
    assert main(["serve", *arguments]) == 0
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(": no effect, as --workers is 0")[0] for text in told] == [flags] * bool(flags)
    assert all("give it to env-worker" in text for text in told)


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "usage: env-broker" in said
    assert "exit code: 0 stopped and nothing lost; 1 cannot start, as where the port is taken;" in said
    if arguments[0] == "serve":
        assert "none|process" in said  # as it is to be written
        assert "NONE" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND; see env-broker --help"),
        (["dance"], "invalid choice: 'dance'"),
        (["serve", "--nonsense"], "unrecognized arguments: --nonsense; see env-broker serve --help"),
        (
            ["serve", "--workers", "many"],
            "argument --workers (ENV_BROKER_WORKERS): invalid int value: 'many'",
        ),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_misspelt_variable_is_named_with_what_was_meant() -> None:
    names = ["ENV_BROKER_WORKERS", "ENV_BROKER_WORKER", "ENV_BROKER_ZZZ", "ENV_WORKER_X", "PATH"]
    known = {setting.variable for setting in settings_table()}
    misspelt, unknown = unknown_variables(names, VARIABLE_PREFIX, known)
    assert "ENV_BROKER_WORKER is no setting" in misspelt
    assert "did you mean ENV_BROKER_WORKERS?" in misspelt
    assert "ENV_BROKER_ZZZ is no setting" in unknown

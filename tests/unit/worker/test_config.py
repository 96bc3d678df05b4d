"""The worker's settings: one table, from which flags and variables come."""

from __future__ import annotations

import socket
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from env_worker.config import (
    KNOWN_VARIABLES,
    VARIABLE_PREFIX,
    SettingsError,
    WorkerSettings,
    make_parser,
    settings_table,
)
from env_worker.variables import unknown_variables

FIXED_FLAGS = {
    "--env", "--hook", "--listen", "--broker", "--advertise", "--max-concurrent", "--late-cancel-seconds",
    "--drain-seconds", "--linger-seconds", "--kill-seconds",
}  # fmt: skip


def test_the_table_has_every_field_once_and_the_fixed_flags() -> None:
    table = settings_table()
    assert sorted(setting.name for setting in table) == sorted(item.name for item in fields(WorkerSettings))
    assert table[0].name == "environments"
    assert {setting.flag for setting in table} >= FIXED_FLAGS
    assert all(setting.unit and setting.help for setting in table)


@pytest.mark.parametrize("setting", settings_table(), ids=lambda setting: setting.flag)
def test_a_variable_is_the_flag_in_capitals_behind_the_prefix_and_help_names_it(setting: Any) -> None:
    assert setting.variable == "ENV_WORKER_" + setting.flag[2:].replace("-", "_").upper()
    text = " ".join(make_parser().format_help().split())
    assert setting.variable in text
    assert setting.flag in text


def test_help_shows_choices_as_they_are_typed() -> None:
    assert "--isolate none|process" in make_parser().format_help()


def test_a_variable_that_is_no_setting_is_named_with_the_one_that_was_meant() -> None:
    names = [
        "ENV_WORKER_HOKO",
        "ENV_WORKER_XYZ",
        "ENV_WORKER_HOOK",
        "ENV_WORKER_LOCAL_SLOT",
        "HOME",
        "ENV_CLIENT_A",
    ]
    hook, other = unknown_variables(names, VARIABLE_PREFIX, KNOWN_VARIABLES)
    assert "ENV_WORKER_HOKO is no setting" in hook
    assert "did you mean ENV_WORKER_HOOK?" in hook
    assert "ENV_WORKER_XYZ is no setting" in other
    assert "see --help" in other


def test_defaults() -> None:
    settings = WorkerSettings.from_arguments([], {})
    assert settings == WorkerSettings()
    assert (settings.listen, settings.late_cancel_seconds, settings.loopback) == ("127.0.0.1:0", 60.0, True)
    with pytest.raises(FrozenInstanceError):
        settings.seed = 1  # type: ignore[misc]


def test_flags_win_over_variables_and_variables_over_defaults() -> None:
    variables = {
        "ENV_WORKER_HOOK": "my_hooks:hook",
        "ENV_WORKER_SEED": "7",
        "ENV_WORKER_INSECURE": "true",
        "ENV_WORKER_ENV": "a, b",
        "ENV_WORKER_DRAIN_SECONDS": "2.5",
    }
    settings = WorkerSettings.from_arguments(["--seed", "8", "--kill-seconds", "1"], variables)
    assert (settings.hook, settings.seed, settings.insecure) == ("my_hooks:hook", 8, True)
    assert (settings.environments, settings.drain_seconds, settings.kill_seconds) == (("a", "b"), 2.5, 1.0)
    assert WorkerSettings.from_arguments(["--env", "c", "--env", "d"], variables).environments == ("c", "d")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_concurrent": 0}, "--max-concurrent is 0, expected 1"),
        ({"hook_threads": 0}, "--hook-threads is 0"),
        ({"session_grace_seconds": -1}, "--session-grace-seconds is -1, expected 0"),
        ({"max_queue": -1}, "--max-queue is -1, expected 0"),
        ({"late_cancel_seconds": -1.0}, "--late-cancel-seconds is -1"),
        ({"drain_seconds": float("nan")}, "--drain-seconds is nan"),
        ({"linger_seconds": float("inf")}, "--linger-seconds is inf"),
        ({"kill_seconds": "soon"}, "--kill-seconds is 'soon'"),
        ({"accuracy": 1.5}, "--accuracy is 1.5, expected 0 to 1"),
        ({"seed": True}, "--seed is True"),
        ({"listen": "8080"}, "--listen is '8080', expected HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "65535"),
        ({"broker": "127.0.0.1:0"}, "--broker is '127.0.0.1:0'"),
        ({"broker": "http://host:1"}, "--broker is 'http://host:1', expected HOST:PORT"),
        ({"broker": "::1:7460"}, "--broker is '::1:7460'"),
        ({"advertise": "host"}, "--advertise"),
        ({"log_level": "loud"}, "choose one of debug, info"),
    ],
)
def test_a_value_out_of_range_is_refused_naming_flag_value_and_limit(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError) as error:
        WorkerSettings(**changes)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("listen", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
        ("[::]:1", False),
    ],
)
def test_what_is_loopback(listen: str, loopback: bool) -> None:
    assert WorkerSettings(listen=listen).loopback is loopback


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--no-such"], {}, "unrecognized arguments: --no-such"),
        (["--seed", "x"], {}, "argument --seed (ENV_WORKER_SEED): invalid int value: 'x'"),
        (["--env"], {}, "argument --env (ENV_WORKER_ENV): expected one argument"),
        (["stray"], {}, "unrecognized arguments: stray"),
        (
            [],
            {"ENV_WORKER_ARRAY_MEMORY_BYTES": "8GB"},
            "argument --array-memory-bytes (ENV_WORKER_ARRAY_MEMORY_BYTES): invalid int value: '8GB'",
        ),
    ],
)
def test_an_unknown_flag_or_a_value_of_the_wrong_kind_is_told_in_one_line(
    arguments: list[str], variables: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        WorkerSettings.from_arguments(arguments, variables)
    assert end.value.code == 2
    line = f"env-worker serve: error: {said}; see env-worker serve --help\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("advertise", "broker", "bound", "expected"),
    [
        (None, "127.0.0.1:1", "127.0.0.1:7000", "127.0.0.1:7000"),
        (None, "127.0.0.1:1", "0.0.0.0:7000", "127.0.0.1:7000"),
        (None, "[::1]:1", "[::]:7000", "[::1]:7000"),
        (None, "no-such-host.invalid:1", "0.0.0.0:7000", f"{socket.gethostname()}:7000"),
        (None, None, "0.0.0.0:7000", f"{socket.gethostname()}:7000"),
        ("worker-3:9000", "127.0.0.1:1", "0.0.0.0:7000", "worker-3:9000"),
    ],
)
def test_a_wildcard_is_advertised_by_the_address_that_the_broker_sees(
    advertise: str | None, broker: str | None, bound: str, expected: str
) -> None:
    assert WorkerSettings(advertise=advertise, broker=broker).advertised(bound) == expected

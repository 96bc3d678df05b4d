"""The client's settings: one frozen dataclass, whose fields are the table of flags and variables."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from env_client.address import checked_target
from env_client.errors import InvalidRequestError
from env_client.request import Endpoint, checked_sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE_PREFIX: Final = "ENV_CLIENT_"
COMMANDS: Final = {
    "run": "run tasks and write their episodes as JSON lines",
    "health": "say whether the server would take a run, and if not why; exit code 0 if it would",
    "top": "show a broker's pool live: workers, slots, queue, counters; Ctrl-C ends it",
    "describe": "say what is served, within which limits, as JSON",
    "cancel": "take one run back and say what became of it",
    "release": "free training arrays that workers keep, of an owner or of a file of episodes",
    "tasks": "write tasks of reasoning-gym, of a dataset or a mix of them, as JSON lines for `run --tasks`",
}


class SettingsError(ValueError):
    """A setting that cannot be used; the message names flag, value, limit and next step."""


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str
    flag: str
    variable: str
    default: Any
    unit: str
    helps: Mapping[str, str]
    """What it sets, by the command that has it."""

    @property
    def help(self) -> str:
        """What it sets, of all its commands."""
        commands: dict[str, list[str]] = {}
        for command, text in self.helps.items():
            commands.setdefault(text, []).append(f"`{command}`")
        if len(commands) == 1:
            return next(iter(commands))
        return ". ".join(f"Of {', '.join(names)}: {text}" for text, names in commands.items())


def _setting(flag: str, default: Any, unit: str, help: str | Mapping[str, str], command: str = "run") -> Any:
    helps = {command: help} if isinstance(help, str) else help
    return field(default=default, metadata={"flag": flag, "unit": unit, "helps": helps})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What a command of `env-client` does. SettingsError if a value is out of its range."""

    broker: str | None = _setting(
        "--broker",
        None,
        "HOST:PORT",
        {
            **dict.fromkeys(
                ("run", "health", "describe", "cancel"), "broker, or lone worker, to talk to; required"
            ),
            "top": "broker whose pool to show; required",
            "release": "broker, or lone worker, whose arrays to free; required, but for --episodes",
        },
    )
    env: str | None = _setting(
        "--env", None, "name", "environment to run; absent: the only one that is served"
    )
    tasks: str | None = _setting("--tasks", None, "file", "one JSON object a line; absent: the empty task {}")
    count: int | None = _setting(
        "--count",
        None,
        "number",
        {
            "run": "episodes to run, over the tasks in turn; absent: each task once",
            "tasks": "tasks to write; absent: as many as the dataset has entries",
        },
    )
    concurrency: int = _setting("--concurrency", 16, "runs", "runs that are open at once")
    out: str | None = _setting(
        "--out",
        None,
        "file",
        {
            "run": "where to write a JSON line for each outcome (the README says what is in it); a file that "
            "has something already is refused; - is standard output; absent: nowhere",
            "tasks": "where to write a JSON line for each task; a file that has something already is "
            "refused; absent, or -: standard output",
        },
    )
    timeout: float | None = _setting("--timeout", None, "s", "how long one run may take; absent: no limit")
    model: str | None = _setting("--model", None, "name", "model to ask; absent: the server's default")
    endpoint: str | None = _setting(
        "--endpoint",
        None,
        "URL",
        "base URL of the engine to ask; must be on the workers' lists; absent: the server's default",
    )
    dialect: str = _setting(
        "--dialect", "", "name", "the API that it speaks, e.g. vllm-chat; absent: the server's default"
    )
    key_variable: str = _setting(
        "--key-variable",
        "",
        "name",
        "environment variable of the workers that holds its API key; must be on their lists",
    )
    sampling: str | None = _setting(
        "--sampling", None, "JSON", 'sampling parameters, e.g. {"temperature": 0.7, "max_tokens": 512}'
    )
    owner: str = _setting(
        "--owner",
        "",
        "name",
        {
            "run": "by whose name the runs' training arrays can be released; absent: one is made up, and "
            "said at the end where they left some",
            "release": "by whose name to release: that which `env-client run` was given, or said at its end",
        },
    )
    episodes: str | None = _setting(
        "--episodes",
        None,
        "file",
        "what `env-client run --out` wrote: release the arrays of its episodes; - is standard input",
        "release",
    )
    wait_seconds: float = _setting(
        "--wait-seconds",
        30.0,
        "s",
        "how long runs that were not sent wait for a server that takes none, before the first one or while a "
        "broker restarts, and how long a run is sent again that was refused before it began, as by a full "
        "queue or array budget or a broker that stops; then they are given up",
    )

    dataset: str | None = _setting(
        "--dataset",
        None,
        "name or file",
        "dataset of reasoning-gym, or a file (.json, .toml, .yaml) that names one or mixes several; required",
        "tasks",
    )
    params: str | None = _setting(
        "--params", None, "JSON", 'parameters of the named dataset, e.g. {"max_terms": 4}', "tasks"
    )
    seed: int | None = _setting(
        "--seed", None, "number", "seed of the entries; absent: the file's, or 0", "tasks"
    )

    once: bool = _setting(
        "--once", False, "switch", "show the pool once; exit code 1 if there is no view of it", "top"
    )
    as_json: bool = _setting(
        "--json", False, "switch", "one JSON object for each view, on a line of its own", "top"
    )
    interval_seconds: float = _setting(
        "--interval-seconds", 1.0, "s", "least time between two views of the pool", "top"
    )

    def __post_init__(self) -> None:
        if self.episodes is not None:
            if self.owner:
                raise SettingsError(
                    f"--owner is {self.owner!r} and --episodes is {self.episodes!r}; give one of them "
                    f"({VARIABLE_PREFIX}OWNER and {VARIABLE_PREFIX}EPISODES count too)"
                )
            if self.broker is None:
                return  # References name their workers.
        if self.dataset is None:
            self._check_broker()
        self._check_range("count", 1, 10**9)
        self._check_range("concurrency", 1, 100_000)
        self._check_range("timeout", 0, 10**7)
        self._check_range("wait_seconds", 0, 86_400)
        self._check_range("interval_seconds", 0.1, 3_600)
        self._check_range("seed", 0, 2**32 - 1)
        self._check_sampling()
        self.dataset_params()
        for flag, value in (("--dialect", self.dialect), ("--key-variable", self.key_variable)):
            if value and self.endpoint is None:
                raise SettingsError(f"{flag} is {value!r}, but no --endpoint says what it is for; give both")

    @classmethod
    def from_namespace(cls, namespace: Any) -> ClientSettings:
        """Settings from what `make_parser` parsed; what the command does not have keeps its default."""
        if namespace.command == "tasks" and namespace.dataset is None:
            raise SettingsError(
                "--dataset is not set; name a dataset of reasoning-gym, or a file that mixes several"
            )
        names = {setting.name for setting in settings_table()}
        return cls(**{name: value for name, value in vars(namespace).items() if name in names})

    def model_endpoint(self) -> Endpoint | None:
        """`endpoint` with its dialect and key variable."""
        if self.endpoint is None:
            return None
        return Endpoint(self.endpoint, dialect=self.dialect, key_variable=self.key_variable)

    def sampling_params(self) -> Mapping[str, Any] | None:
        """`sampling` as a mapping."""
        return _json_object("--sampling", self.sampling)

    def dataset_params(self) -> Mapping[str, Any] | None:
        """`params` as a mapping."""
        return _json_object("--params", self.params)

    def _check_broker(self) -> None:
        if self.broker is None:
            raise SettingsError(f"--broker is not set; give HOST:PORT there or in {VARIABLE_PREFIX}BROKER")
        try:
            checked_target(self.broker, "--broker")
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def _check_sampling(self) -> None:
        sampling = self.sampling_params()
        try:
            if sampling is not None:
                checked_sampling(sampling)
        except InvalidRequestError as error:
            raise SettingsError(f"--sampling: {error}") from error

    def _check_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if math.isnan(value) or not low <= value <= high:
            flag = "--" + name.replace("_", "-")
            raise SettingsError(f"{flag} is {value}, expected {low} to {high}; choose a value in that range")


def _json_object(flag: str, text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{flag} is {text[:80]!r}: {error}; give a JSON object") from error
    if not isinstance(value, dict):
        raise SettingsError(f"{flag} is a JSON {type(value).__name__}; give a JSON object")
    return value


def settings_table() -> tuple[Setting, ...]:
    """Every setting, in the order in which help lists them."""
    return tuple(
        Setting(
            item.name,
            item.metadata["flag"],
            VARIABLE_PREFIX + item.metadata["flag"].removeprefix("--").replace("-", "_").upper(),
            item.default,
            item.metadata["unit"],
            item.metadata["helps"],
        )
        for item in fields(ClientSettings)
    )


KNOWN_VARIABLES: Final = frozenset(setting.variable for setting in settings_table())
"""All that begin with VARIABLE_PREFIX and mean something."""

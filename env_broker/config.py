"""The broker's settings: one frozen dataclass, whose fields are the table of flags and variables."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from env_broker.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE_PREFIX: Final = "ENV_BROKER_"
_HOST_PORT: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Za-z:.%_-]+\]):([0-9]{1,5})")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_LISTS: Final = ("environments",)
ISOLATIONS: Final = ("none", "process")
_TYPES: Final = {"min_workers": int, "max_workers": int, "max_concurrent": int, "late_cancel_seconds": float}
"""Of settings whose default is None."""


class SettingsError(ValueError):
    """A setting that cannot be used; the message names flag, value, limit and next step."""


class Setting(NamedTuple):
    """One row of the table of settings."""

    name: str
    flag: str
    variable: str
    default: Any
    unit: str
    help: str


def _setting(flag: str, default: Any, unit: str, help: str) -> Any:
    return field(default=default, metadata={"flag": flag, "unit": unit, "help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How a broker runs. SettingsError if a value is out of its range."""

    listen: str = _setting(
        "--listen", "127.0.0.1:0", "HOST:PORT", "address to serve on; port 0 picks a free one"
    )
    workers: int = _setting("--workers", 0, "processes", "local workers to start and keep alive")
    min_workers: int | None = _setting(
        "--min-workers", None, "processes", "instead of --workers: fewest local workers of an elastic pool"
    )
    max_workers: int | None = _setting(
        "--max-workers", None, "processes",
        "with --min-workers: most of them; when 90 % of the slots are taken or asked for, as many more are "
        "started as bring it below that",
    )  # fmt: skip
    idle_seconds: float = _setting(
        "--idle-seconds", 60.0, "s",
        "how long a local worker must have had nothing to do before an elastic pool drains it",
    )  # fmt: skip
    environments: tuple[str, ...] = _setting(
        "--env", (), "name",
        "environment for the local workers to serve, as in env-worker's --env; may be repeated "
        "(in the variable: separated by commas)",
    )  # fmt: skip
    hook: str | None = _setting(
        "--hook", None, "module:attribute",
        "episode hook of the local workers, as in env-worker's --hook; settings of theirs that have no flag "
        "here are variables, which they inherit, e.g. ENV_WORKER_ARRAY_MEMORY_BYTES",
    )  # fmt: skip
    max_concurrent: int | None = _setting(
        "--max-concurrent", None, "runs", "runs that a local worker carries at once; absent: its own default"
    )
    late_cancel_seconds: float | None = _setting(
        "--late-cancel-seconds", None, "s", "the local workers' late-cancel window; absent: their own default"
    )
    isolate: str = _setting(
        "--isolate", "none", "|".join(ISOLATIONS),
        "how the local workers isolate runs, as in env-worker's --isolate",
    )  # fmt: skip
    stuck_seconds: float = _setting(
        "--stuck-seconds", 120.0, "s",
        "how long environments may block a local worker, or its process may run without a heartbeat, until "
        "it is replaced; one that is stopped (SIGSTOP) is left alone: its place stays empty until SIGCONT or "
        "SIGKILL",
    )  # fmt: skip
    drain_seconds: float = _setting(
        "--drain-seconds", 30.0, "s", "after SIGTERM: how long running episodes may take to finish"
    )
    linger_seconds: float = _setting(
        "--linger-seconds", 60.0, "s",
        "then: how long local workers stay for replies that can be taken back, and for held training arrays",
    )  # fmt: skip
    kill_seconds: float = _setting(
        "--kill-seconds", 10.0, "s", "at the end: how long local workers wait for hooks that still run"
    )
    max_queue: int = _setting("--max-queue", 1024, "runs", "runs that may wait for a worker")
    max_queue_bytes: int = _setting(
        "--max-queue-bytes",
        256 * 1024 * 1024,
        "bytes",
        "what the requests of those runs may have together; a larger one waits only alone",
    )
    quiet_seconds: float = _setting(
        "--quiet-seconds", 60.0, "s", "when no run has gone on for so long, the log names the oldest ones"
    )
    heartbeat_seconds: float = _setting(
        "--heartbeat-seconds", 1.0, "s", "how often registered workers say that they live"
    )
    lease_seconds: float = _setting(
        "--lease-seconds", 5.0, "s", "after how long without a heartbeat a worker is lost, with its runs"
    )
    session_grace_seconds: float = _setting(
        "--session-grace-seconds", 3.0, "s",
        "how long a client's session that broke may take to come back before its runs are cancelled",
    )  # fmt: skip
    insecure: bool = _setting(
        "--insecure", False, "switch", "allow an address beyond loopback: neither encrypted nor authenticated"
    )
    log_level: str = _setting("--log-level", "info", "|".join(LOG_LEVELS), "least severe messages to log")

    def __post_init__(self) -> None:
        self._check_range("workers", 0, 1_000)
        self._check_elastic()
        self._check_range("max_queue", 0, 1_000_000)
        self._check_range("max_queue_bytes", 0, 2**40)
        for name in ("idle_seconds", "stuck_seconds", "quiet_seconds"):
            self._check_range(name, 0.1, 86_400)
        if self.isolate not in ISOLATIONS:
            raise SettingsError(f"--isolate is {self.isolate!r}; choose one of {', '.join(ISOLATIONS)}")
        if self.max_concurrent is not None:
            self._check_range("max_concurrent", 1, 65_536)
        if self.late_cancel_seconds is not None:
            self._check_range("late_cancel_seconds", 0, 86_400)
        for name in ("drain_seconds", "linger_seconds", "kill_seconds", "session_grace_seconds"):
            self._check_range(name, 0, 86_400)
        self._check_range("heartbeat_seconds", 0.05, 3_600)
        self._check_range("lease_seconds", 0.1, 86_400)
        if self.lease_seconds < 2 * self.heartbeat_seconds:
            raise SettingsError(
                f"--lease-seconds is {self.lease_seconds:g}, expected at least twice --heartbeat-seconds, "
                f"{self.heartbeat_seconds:g}; one late heartbeat must not lose a worker"
            )
        match = _HOST_PORT.fullmatch(self.listen)
        if match is None or int(match[1]) > 65_535:
            raise SettingsError(
                f"--listen is {self.listen!r}, expected HOST:PORT with a port from 0 to 65535, "
                "e.g. 127.0.0.1:7400"
            )
        if not self.loopback and not self.insecure:
            raise SettingsError(
                f"--listen is {self.listen}, beyond loopback, where connections would be neither encrypted "
                "nor authenticated; listen on 127.0.0.1, or add --insecure if the network is trusted"
            )
        if self.most_workers and not self.environments:
            flag = "--workers" if self.max_workers is None else "--max-workers"
            raise SettingsError(
                f"{flag} is {self.most_workers}, but no --env says what they serve; add e.g. --env synthetic"
            )
        if self.log_level not in LOG_LEVELS:
            raise SettingsError(f"--log-level is {self.log_level!r}; choose one of {', '.join(LOG_LEVELS)}")

    @classmethod
    def from_arguments(
        cls, arguments: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> BrokerSettings:
        """Settings from command-line flags, then variables, then defaults. SystemExit on an unknown flag."""
        environ = dict(os.environ if variables is None else variables)
        return cls.from_namespace(make_parser().parse_args(list(arguments), env_vars=environ))

    @classmethod
    def from_namespace(cls, namespace: Any) -> BrokerSettings:
        """Settings from what `make_parser` parsed."""
        values = {setting.name: getattr(namespace, setting.name) for setting in settings_table()}
        for name in _LISTS:
            parts = [part.strip() for text in values[name] or () for part in text.split(",")]
            values[name] = tuple(part for part in parts if part)
        return cls(**values)

    @property
    def loopback(self) -> bool:
        """Whether `listen` is an address of this host alone."""
        host = self.listen.rpartition(":")[0].strip("[]")
        return host == "localhost" or host == "::1" or host.startswith("127.")

    @property
    def least_workers(self) -> int:
        """Local workers that there always are."""
        return self.workers if self.min_workers is None else self.min_workers

    @property
    def most_workers(self) -> int:
        """Local workers that there may be; equal to `least_workers` in a static pool."""
        return self.workers if self.max_workers is None else self.max_workers

    @property
    def stop_seconds(self) -> float:
        """How long a local worker may take to stop."""
        return self.drain_seconds + self.linger_seconds + self.kill_seconds

    def worker_arguments(self, broker: str) -> tuple[str, ...]:
        """What local workers are started with, after `env-worker`."""
        arguments = ["serve", "--listen=127.0.0.1:0", f"--broker={broker}", "--exit-with-stdin"]
        arguments += [f"--env={name}" for name in self.environments]
        if self.most_workers > 1:  # each would take a quarter of the host's memory for its arrays
            arguments.append(f"--array-workers={self.most_workers}")
        for name in ("hook", "max_concurrent", "late_cancel_seconds"):
            if (value := getattr(self, name)) is not None:
                arguments.append(f"{_flag(name)}={value}")
        for name in (
            "isolate", "stuck_seconds", "drain_seconds", "linger_seconds", "kill_seconds", "log_level",
        ):  # fmt: skip
            arguments.append(f"{_flag(name)}={getattr(self, name)}")
        return tuple(arguments)

    def _check_elastic(self) -> None:
        if self.min_workers is None and self.max_workers is None:
            return
        if self.min_workers is None or self.max_workers is None:
            given, absent = ("--min", "--max") if self.max_workers is None else ("--max", "--min")
            value = self.min_workers if self.max_workers is None else self.max_workers
            raise SettingsError(
                f"{given}-workers is {value}, but {absent}-workers is not given; an elastic pool needs both, "
                "a static one --workers"
            )
        if self.workers:
            raise SettingsError(
                f"--workers is {self.workers} beside --min-workers and --max-workers; a pool is static or "
                "elastic: leave one of them out"
            )
        # One at least, or nobody would know what the pool serves.
        self._check_range("min_workers", 1, 1_000)
        self._check_range("max_workers", self.min_workers, 1_000)

    def _check_range(self, name: str, low: float, high: float) -> None:
        value, flag = getattr(self, name), _flag(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise SettingsError(f"{flag} is {value!r}, expected a number from {low} to {high}")
        if not low <= value <= high:
            raise SettingsError(f"{flag} is {value}, expected {low} to {high}; choose a value in that range")


def settings_table() -> tuple[Setting, ...]:
    """Every setting, in the order in which help lists them."""
    return tuple(
        Setting(
            item.name,
            item.metadata["flag"],
            VARIABLE_PREFIX + item.metadata["flag"].removeprefix("--").replace("-", "_").upper(),
            item.default,
            item.metadata["unit"],
            item.metadata["help"],
        )
        for item in fields(BrokerSettings)
    )


def _add_settings(parser: Parser) -> None:
    """Add a flag and a variable for every setting."""
    for setting in settings_table():
        default = "" if setting.default is None or setting.default == () else f"; default {setting.default}"
        described: dict[str, Any] = {
            "dest": setting.name,
            "env_var": setting.variable,
            "help": f"{setting.help} [{setting.variable}{default}]".replace("%", "%%"),
        }
        if setting.unit == "switch":
            described["action"] = "store_true"
        else:
            described["metavar"] = setting.unit.upper() if setting.unit.isalpha() else setting.unit
            described["default"] = setting.default
            if setting.name in _LISTS:
                described |= {"action": "append", "default": None}
            elif setting.name in _TYPES:
                described["type"] = _TYPES[setting.name]
            elif isinstance(setting.default, (int, float)):
                described["type"] = type(setting.default)
        parser.add_argument(setting.flag, **described)


def make_parser(prog: str = "env-broker serve") -> Parser:
    """The parser that the table makes."""
    parser = Parser(
        prog=prog, description="Serve one address in front of many workers.",
        allow_abbrev=False, add_env_var_help=False,
    )  # fmt: skip
    _add_settings(parser)
    return parser


def _flag(name: str) -> str:
    return next(setting.flag for setting in settings_table() if setting.name == name)

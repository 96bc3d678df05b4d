"""The worker's settings: one frozen dataclass, whose fields carry the table that flags and variables come
from."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import configargparse

from env_worker.domain.ledger import LATE_CANCEL_SECONDS
from env_worker.domain.sessions import SESSION_GRACE_SECONDS
from env_worker.local_address import local_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE_PREFIX: Final = "ENV_WORKER_"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ISOLATIONS: Final = ("none", "process")
WILDCARDS: Final = frozenset({"0.0.0.0", "[::]", "::"})
LOCAL_SLOT_VARIABLE: Final = "ENV_WORKER_LOCAL_SLOT"
"""Set by a broker for the workers that it starts itself; handed back when the worker registers."""


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
class WorkerSettings:
    """How a worker runs. SettingsError if a value is out of its range."""

    environments: tuple[str, ...] = _setting(
        "--env", (), "name",
        "environment to serve: synthetic, reasoning-gym, an entry point, or [name=]module:attribute; may "
        "be repeated "
        "(in the variable: separated by commas)",
    )  # fmt: skip
    hook: str | None = _setting(
        "--hook",
        None,
        "module:attribute",
        "episode hook: that object, or what that class or function returns",
    )
    listen: str = _setting(
        "--listen", "127.0.0.1:0", "HOST:PORT", "address to serve on; port 0 picks a free one"
    )
    broker: str | None = _setting("--broker", None, "HOST:PORT", "broker whose pool to join")
    advertise: str | None = _setting(
        "--advertise",
        None,
        "HOST:PORT",
        "address at which the broker and trainers reach this worker; default: --listen's, and where that is "
        "a wildcard, the address from which this host reaches the broker",
    )
    max_concurrent: int = _setting("--max-concurrent", 64, "runs", "runs that are carried at once")
    max_queue: int = _setting("--max-queue", 256, "runs", "runs that may wait for one of those places")
    max_queue_bytes: int = _setting(
        "--max-queue-bytes",
        256 * 1024 * 1024,
        "bytes",
        "what the requests of those runs may have together; a larger one waits only alone",
    )
    isolate: str = _setting(
        "--isolate",
        "none",
        "|".join(ISOLATIONS),
        "process: each run gets a process of its own, for environments that hold the interpreter",
    )
    stuck_seconds: float = _setting(
        "--stuck-seconds",
        120.0,
        "s",
        "how long an environment may block the loop of all environments; then the worker drains and ends, to "
        "be replaced",
    )
    late_cancel_seconds: float = _setting(
        "--late-cancel-seconds", LATE_CANCEL_SECONDS, "s", "how long after its reply a run can be taken back"
    )
    session_grace_seconds: float = _setting(
        "--session-grace-seconds",
        SESSION_GRACE_SECONDS,
        "s",
        "how long a client's session that broke may take to come back; then its runs are cancelled",
    )
    drain_seconds: float = _setting(
        "--drain-seconds", 30.0, "s", "after SIGTERM: how long running episodes may take to finish"
    )
    linger_seconds: float = _setting(
        "--linger-seconds",
        60.0,
        "s",
        "after the drain: how long to stay for replies that can still be taken back, and for held arrays",
    )
    kill_seconds: float = _setting(
        "--kill-seconds",
        10.0,
        "s",
        "at the end: how long to wait for hooks that still run; then the exit code is 3",
    )
    hook_threads: int = _setting(
        "--hook-threads", 4, "threads", "keeps, and likewise discards, that run at once"
    )
    seed: int = _setting("--seed", 0, "number", "seed of the simulated model")
    accuracy: float = _setting("--accuracy", 0.6, "0 to 1", "rate at which the simulated model is right")
    insecure: bool = _setting(
        "--insecure", False, "switch", "allow an address beyond loopback: neither encrypted nor authenticated"
    )
    exit_with_stdin: bool = _setting(
        "--exit-with-stdin",
        False,
        "switch",
        "end when standard input closes: for a worker that a broker started",
    )
    log_level: str = _setting("--log-level", "info", "|".join(LOG_LEVELS), "least severe messages to log")

    def __post_init__(self) -> None:
        for name in ("max_concurrent", "hook_threads"):
            self._check_range(name, 1, 100_000)
        self._check_range("max_queue", 0, 1_000_000)
        self._check_range("max_queue_bytes", 0, 2**40)
        self._check_range("stuck_seconds", 0.1, 86_400)
        if self.isolate not in ISOLATIONS:
            raise SettingsError(f"--isolate is {self.isolate!r}; choose one of {', '.join(ISOLATIONS)}")
        for name in ("drain_seconds", "linger_seconds", "kill_seconds"):
            self._check_range(name, 0, 86_400)
        for name in ("late_cancel_seconds", "session_grace_seconds"):
            self._check_range(name, 0, 86_400)
        self._check_range("accuracy", 0, 1)
        self._check_range("seed", -(2**63), 2**63 - 1)
        for name in ("listen", "broker", "advertise"):
            if (address := getattr(self, name)) is not None:
                self._check_address(name, address)
        if self.log_level not in LOG_LEVELS:
            raise SettingsError(f"--log-level is {self.log_level!r}; choose one of {', '.join(LOG_LEVELS)}")

    def advertised(self, bound: str) -> str:
        """The address that the worker gives to its broker, where it was bound to HOST:PORT `bound`."""
        host, _, port = bound.rpartition(":")
        if self.advertise or host not in WILDCARDS:
            return self.advertise or bound
        # Nobody can dial a wildcard. What the broker sees as this host it can dial, unless a firewall or NAT
        # lies in between: then it says so, and --advertise mends it. A broker whose name does not resolve yet
        # leaves the host's name, which containers in one network resolve.
        family = socket.AF_INET if host == "0.0.0.0" else socket.AF_INET6
        own = None if self.broker is None else local_address(self.broker, family)
        return f"{own or socket.gethostname()}:{port}"

    @classmethod
    def from_arguments(
        cls, arguments: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> WorkerSettings:
        """Settings from command-line flags, then variables, then defaults. SystemExit on an unknown flag."""
        environ = dict(os.environ if variables is None else variables)
        return cls.from_namespace(make_parser().parse_args(list(arguments), env_vars=environ))

    @classmethod
    def from_namespace(cls, namespace: Any) -> WorkerSettings:
        """Settings from what `make_parser` parsed."""
        values = {name: getattr(namespace, name) for name in (setting.name for setting in settings_table())}
        specs = values["environments"] or []
        values["environments"] = tuple(
            name for spec in specs for part in spec.split(",") if (name := part.strip())
        )
        return cls(**values)

    @property
    def loopback(self) -> bool:
        """Whether `listen` is an address of this host alone."""
        host = self.listen.rpartition(":")[0].strip("[]")
        return host == "localhost" or host == "::1" or host.startswith("127.")

    def _check_range(self, name: str, low: float, high: float) -> None:
        value, flag = getattr(self, name), _flag(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise SettingsError(f"{flag} is {value!r}, expected a number from {low} to {high}")
        if not low <= value <= high:
            raise SettingsError(f"{flag} is {value}, expected {low} to {high}; choose a value in that range")

    def _check_address(self, name: str, address: str) -> None:
        host, colon, port = address.rpartition(":")
        least = 0 if name == "listen" else 1
        if not (host and colon and port.isascii() and port.isdigit() and least <= int(port) <= 65_535):
            raise SettingsError(
                f"{_flag(name)} is {address!r}, expected HOST:PORT with a port from {least} to 65535, "
                "e.g. 127.0.0.1:7460"
            )


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
        for item in fields(WorkerSettings)
    )


KNOWN_VARIABLES: Final = frozenset({LOCAL_SLOT_VARIABLE, *(setting.variable for setting in settings_table())})
"""All that begin with VARIABLE_PREFIX and mean something."""


def make_parser(prog: str = "env-worker serve") -> configargparse.ArgumentParser:
    """The parser that the table makes."""
    parser = configargparse.ArgumentParser(
        prog=prog, description="Serve environments: run episodes, stream their growth, keep their arrays.",
        allow_abbrev=False, add_env_var_help=False,
    )  # fmt: skip
    for setting in settings_table():
        default = "" if setting.default in (None, (), False) else f"; default {setting.default}"
        described: dict[str, Any] = {
            "dest": setting.name,
            "env_var": setting.variable,
            "help": f"{setting.help} [{setting.variable}{default}]".replace("%", "%%"),
        }
        if setting.unit == "switch":
            described["action"] = "store_true"
        else:
            # Choices stay as they are typed.
            upper = setting.unit.islower() and "|" not in setting.unit
            described |= {"metavar": setting.unit.upper() if upper else setting.unit}
            described["default"] = setting.default
            if setting.name == "environments":
                described |= {"action": "append", "default": None}
            elif isinstance(setting.default, (int, float)):
                described["type"] = type(setting.default)
        parser.add_argument(setting.flag, **described)
    return parser


def _flag(name: str) -> str:
    return next(setting.flag for setting in settings_table() if setting.name == name)

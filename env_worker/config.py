"""The worker's settings: one frozen dataclass, whose fields carry the table that flags and variables come
from."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import TRAINING_ARRAY_FIELDS
from env_worker.domain.ledger import LATE_CANCEL_SECONDS
from env_worker.domain.sessions import SESSION_GRACE_SECONDS
from env_worker.local_address import local_address
from env_worker.model_settings import ModelSettings
from env_worker.parser import Parser
from env_worker.setting import (
    VARIABLE_PREFIX,
    Setting,
    SettingsError,
    add_flag,
    check_address,
    check_range,
    is_loopback,
    setting,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "KNOWN_VARIABLES",
    "LOCAL_SLOT_VARIABLE",
    "LOG_LEVELS",
    "VARIABLE_PREFIX",
    "Setting",
    "SettingsError",
    "WorkerSettings",
    "make_parser",
    "settings_table",
]

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
ISOLATIONS: Final = ("none", "process")
WILDCARDS: Final = frozenset({"0.0.0.0", "[::]", "::"})
LOCAL_SLOT_VARIABLE: Final = "ENV_WORKER_LOCAL_SLOT"
"""Set by a broker for the workers that it starts itself; handed back when the worker registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(ModelSettings):
    """How a worker runs. SettingsError if a value is out of its range."""

    environments: tuple[str, ...] = setting(
        "--env", (), "name",
        "environment to serve: synthetic, reasoning-gym[:dataset or file], verifiers:file, an entry point, "
        "or [name=]module:attribute; may be repeated "
        "(in the variable: separated by commas)",
    )  # fmt: skip
    hook: str | None = setting(
        "--hook",
        None,
        "module:attribute",
        "episode hook: array-keeper, or that object, or what that class or function returns",
    )
    listen: str = setting(
        "--listen", "127.0.0.1:0", "HOST:PORT", "address to serve on; port 0 picks a free one"
    )
    broker: str | None = setting("--broker", None, "HOST:PORT", "broker whose pool to join")
    advertise: str | None = setting(
        "--advertise",
        None,
        "HOST:PORT",
        "address at which the broker and trainers reach this worker; default: --listen's, and where that is "
        "a wildcard, the address from which this host reaches the broker",
    )
    max_concurrent: int = setting("--max-concurrent", 64, "runs", "runs that are carried at once")
    max_queue: int = setting("--max-queue", 256, "runs", "runs that may wait for one of those places")
    max_queue_bytes: int = setting(
        "--max-queue-bytes",
        256 * 1024 * 1024,
        "bytes",
        "what the requests of those runs may have together; a larger one waits only alone",
    )
    isolate: str = setting(
        "--isolate",
        "none",
        "|".join(ISOLATIONS),
        "process: each run gets a process of its own, for environments that hold the interpreter",
    )
    stuck_seconds: float = setting(
        "--stuck-seconds",
        120.0,
        "s",
        "how long an environment may block the loop of all environments; then the worker drains and ends, to "
        "be replaced",
    )
    late_cancel_seconds: float = setting(
        "--late-cancel-seconds", LATE_CANCEL_SECONDS, "s", "how long after its reply a run can be taken back"
    )
    session_grace_seconds: float = setting(
        "--session-grace-seconds",
        SESSION_GRACE_SECONDS,
        "s",
        "how long a client's session that broke may take to come back; then its runs are cancelled",
    )
    drain_seconds: float = setting(
        "--drain-seconds", 30.0, "s", "after SIGTERM: how long running episodes may take to finish"
    )
    linger_seconds: float = setting(
        "--linger-seconds",
        60.0,
        "s",
        "after the drain: how long to stay for replies that can still be taken back, and for held arrays",
    )
    kill_seconds: float = setting(
        "--kill-seconds",
        10.0,
        "s",
        "at the end: how long to wait for hooks that still run; then the exit code is 3",
    )
    hook_threads: int = setting(
        "--hook-threads", 4, "threads", "keeps, and likewise discards, that run at once"
    )
    array_memory_bytes: int | None = setting(
        "--array-memory-bytes",
        None,
        "bytes",
        "training arrays that the array-keeper holds in memory; default: a quarter of the memory that this "
        "process may use",
        type=int,
    )
    array_spill_dir: str | None = setting(
        "--array-spill-dir",
        None,
        "folder",
        "where it puts those beyond that, in files without names; default: nowhere",
    )
    array_spill_bytes: int | None = setting(
        "--array-spill-bytes",
        None,
        "bytes",
        "training arrays that it holds there; default: half of what is free there at the start",
        type=int,
    )
    array_workers: int = setting(
        "--array-workers",
        1,
        "workers",
        "workers that share this host's memory and spill folder: those two defaults are divided by it; a "
        "broker says it to its local workers",
    )
    array_lease_seconds: float = setting(
        "--array-lease-seconds",
        0.0,
        "s",
        "after how long without a fetch training arrays are freed, for orchestrators that died; 0: never",
    )
    array_fields: tuple[str, ...] = setting(
        "--array-fields",
        (),
        "name",
        f"training arrays to keep: {', '.join(TRAINING_ARRAY_FIELDS)}; may be repeated, or separated by "
        "commas; default: all",
    )
    array_strict: bool = setting(
        "--array-strict",
        False,
        "switch",
        "fail a run whose training arrays have a hole, instead of marking the field incomplete",
    )
    metrics: str | None = setting(
        "--metrics",
        None,
        "HOST:PORT",
        "address at which Prometheus reads metrics; port 0 picks a free one",
    )
    insecure: bool = setting(
        "--insecure", False, "switch", "allow an address beyond loopback: neither encrypted nor authenticated"
    )
    exit_with_stdin: bool = setting(
        "--exit-with-stdin",
        False,
        "switch",
        "end when standard input closes: for a worker that a broker started",
    )
    log_level: str = setting("--log-level", "info", "|".join(LOG_LEVELS), "least severe messages to log")

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
        self.check_model_settings()
        self._check_arrays()
        for name in ("listen", "broker", "advertise", "metrics"):
            if (address := getattr(self, name)) is not None:
                check_address(_flag(name), address, 0 if name in ("listen", "metrics") else 1)
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
        values = {name: getattr(namespace, name) for name in (row.name for row in settings_table())}
        for name in _LISTS:
            parts = (part.strip() for text in values[name] or () for part in text.split(","))
            values[name] = tuple(part for part in parts if part)
        return cls(**values)

    @property
    def loopback(self) -> bool:
        """Whether `listen` is an address of this host alone."""
        return is_loopback(self.listen)

    def _check_arrays(self) -> None:
        for name in ("array_memory_bytes", "array_spill_bytes"):
            if getattr(self, name) is not None:
                self._check_range(name, 0, 2**50)
        self._check_range("array_workers", 1, 100_000)
        self._check_range("array_lease_seconds", 0, 31_536_000)
        if self.array_spill_bytes is not None and self.array_spill_dir is None:
            raise SettingsError(
                f"--array-spill-bytes is {self.array_spill_bytes}, but no --array-spill-dir says where; give "
                "both, or neither"
            )
        if self.array_memory_bytes == 0 and self.array_spill_dir is None:
            raise SettingsError(
                "--array-memory-bytes is 0 and there is no --array-spill-dir, so nothing could be kept; give "
                "it memory or a folder, or leave out the hook that keeps arrays"
            )
        for name in self.array_fields:
            if name not in TRAINING_ARRAY_FIELDS:
                raise SettingsError(
                    f"--array-fields has {name!r}; choose of {', '.join(TRAINING_ARRAY_FIELDS)}"
                )

    def _check_range(self, name: str, low: float, high: float) -> None:
        check_range(_flag(name), getattr(self, name), low, high)


_LISTS: Final = ("environments", "array_fields", "allow_endpoint", "allow_key_variable", "model_arrays")


def settings_table() -> tuple[Setting, ...]:
    """Every setting, in the order in which help lists them: those of models, which are inherited, last."""
    rows = table_of(WorkerSettings)
    inherited = {item.name for item in fields(ModelSettings)}
    return tuple(sorted(rows, key=lambda row: row.name in inherited))


KNOWN_VARIABLES: Final = frozenset({LOCAL_SLOT_VARIABLE, *(row.variable for row in settings_table())})
"""All that begin with VARIABLE_PREFIX and mean something."""


def make_parser(prog: str = "env-worker serve") -> Parser:
    """The parser that the table makes."""
    parser = Parser(
        prog=prog, description="Serve environments: run episodes, stream their growth, keep their arrays.",
        allow_abbrev=False, add_env_var_help=False,
    )  # fmt: skip
    for row in settings_table():
        add_flag(parser, row)
    return parser


def _flag(name: str) -> str:
    return next(row.flag for row in settings_table() if row.name == name)

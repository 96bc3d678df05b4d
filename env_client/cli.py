"""The command `env-client`."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import secrets
import shlex
import stat
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

from google.protobuf.json_format import MessageToDict

from env_client.batch import Batch, TasksError, read_tasks
from env_client.channels import open_sync_channel
from env_client.client import EnvClient
from env_client.config import KNOWN_VARIABLES, VARIABLE_PREFIX, ClientSettings, SettingsError
from env_client.errors import EnvError, InvalidRequestError
from env_client.outcomes import CANCEL_OUTCOMES, TOO_LATE
from env_client.parser import make_parser
from env_client.pool import why_not_ready_sync
from env_client.progress import open_display
from env_client.reference_lines import FoundReferences, find_references
from env_client.release import holders_of_owner, holders_of_references, release
from env_client.sync import SyncEnvClient
from env_client.tally import Tally
from env_client.task_source import read_task_set
from env_client.top import PoolWatch, open_top
from env_client.variables import unknown_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

_OK, _FAILED, _USAGE, _INTERRUPTED = 0, 1, 2, 130
_NOT_OURS = ("UNAVAILABLE", "UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED")
_LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"
_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 all went well, 1 something did not, 2 usage, 130 Ctrl-C."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=_LOG_FORMAT)
    try:
        return _main(arguments)
    except BrokenPipeError:
        return _OK  # whoever read the output has read enough
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # Nor shall the interpreter complain when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(arguments: Sequence[str] | None) -> int:
    namespace = make_parser().parse_args(arguments)
    for warning in unknown_variables(os.environ, VARIABLE_PREFIX, KNOWN_VARIABLES):
        _LOG.warning("%s", warning)
    try:
        settings = ClientSettings.from_namespace(namespace)
        if namespace.command == "run":
            return _run(settings)
        if namespace.command == "top":
            return _top(settings)
        if namespace.command == "release":
            return _release(settings)
        if namespace.command == "tasks":
            return _tasks(settings)
        return _ask(namespace.command, settings, getattr(namespace, "request_id", ""))
    except (SettingsError, TasksError, InvalidRequestError) as error:
        print(f"env-client: {error}", file=sys.stderr)
        return _USAGE
    except EnvError as error:
        # Without a reason it is gRPC that says so, which knows of no flags: nobody is there, or another.
        lost = error.code in _NOT_OURS and not error.reason
        next_step = (
            f"; see that a broker or worker is up at {namespace.broker}, or correct --broker" if lost else ""
        )
        print(f"env-client: {error}{next_step}", file=sys.stderr)
        return _FAILED
    except ExceptionGroup as group:
        print(f"env-client: {_first(group)}; the outcomes from there on are not written", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _ask(command: str, settings: ClientSettings, request_id: str) -> int:
    assert settings.broker is not None
    with SyncEnvClient(settings.broker) as client:
        if command == "health":
            health = client.health()
            print(health)
            if health == "SERVING":
                return _OK
            with open_sync_channel(settings.broker, None) as channel:
                if why := why_not_ready_sync(channel):
                    print(why)
            return _FAILED
        if command == "describe":
            print(json.dumps(MessageToDict(client.describe(), preserving_proto_field_name=True), indent=2))
        else:
            outcome = client.cancel(request_id)
            print(outcome)
            print(CANCEL_OUTCOMES.get(outcome, "an outcome of a later version; see its PROTOCOL.md"))
            return _FAILED if outcome == TOO_LATE else _OK
    return _OK


def _top(settings: ClientSettings) -> int:
    assert settings.broker is not None
    with open_top(settings.broker, as_json=settings.as_json, live=not settings.once) as display:
        PoolWatch(
            settings.broker, display, interval_seconds=settings.interval_seconds, once=settings.once
        ).run_until_interrupt()
    return _OK


def _release(settings: ClientSettings) -> int:
    if settings.episodes is not None:
        found = _references(settings.episodes)
        for fault in found.faults:
            print(f"env-client: {settings.episodes}, {fault}; its arrays are not released", file=sys.stderr)
        if found.more_faults:
            print(
                f"env-client: {settings.episodes}, {found.more_faults} lines more, likewise", file=sys.stderr
            )
        all_freed = release(holders_of_references(found), sys.stdout, sys.stderr)
        return _OK if all_freed and not found.faults else _FAILED
    if not settings.owner:
        raise SettingsError("release needs --owner NAME or --episodes FILE; say whose arrays are to be freed")
    assert settings.broker is not None
    holders = holders_of_owner(settings.broker, settings.owner)
    return _OK if release(holders, sys.stdout, sys.stderr) else _FAILED


def _references(path: str) -> FoundReferences:
    if path == "-":
        return find_references(sys.stdin.buffer)
    try:
        with open(path, "rb") as lines:
            return find_references(lines)
    except OSError as error:
        raise SettingsError(f"--episodes {path}: {error}; name what `env-client run --out` wrote") from error


def _tasks(settings: ClientSettings) -> int:
    assert settings.dataset is not None
    tasks = read_task_set(settings.dataset, settings.dataset_params(), settings.seed, settings.count)
    unchecked = tasks.check()
    with _opened(settings.out or "-") as out:
        assert out is not None
        for task in tasks:
            out.write(json.dumps(task) + "\n")
    print(f"{len(tasks)} tasks of {tasks}", file=sys.stderr)
    if unchecked:
        print(f"{unchecked}: names and params were not checked here, a worker will", file=sys.stderr)
    return _OK


def _run(settings: ClientSettings) -> int:
    tasks = read_tasks(settings.tasks) if settings.tasks is not None else [{}]
    if settings.tasks is not None and settings.out is not None and _same_file(settings.tasks, settings.out):
        raise SettingsError(
            f"--out {shlex.quote(settings.out)} is the file of --tasks; name another, or it would be lost"
        )
    tally = Tally(settings.count or len(tasks))
    # Of runs that nobody owns, arrays whose references are lost could be freed by nobody.
    owner = settings.owner or f"env-client-{secrets.token_hex(4)}"
    # What the imports made stays: a collection that looked through it would stop all runs for milliseconds.
    gc.collect()
    gc.freeze()
    with _opened(settings.out) as out:
        report = sys.stderr if out is sys.stdout else sys.stdout
        try:
            # Ctrl-C cancels the main task: its runs are told, and the client waits until that has left.
            asyncio.run(_run_all(settings, owner, tasks, tally, out))
        except KeyboardInterrupt:
            print("interrupted: the open runs were cancelled", file=sys.stderr)
            raise
        finally:
            gc.unfreeze()
            print(tally.summary(), file=report)
            if tally.referring:
                episodes = f"{tally.referring} episode{'' if tally.referring == 1 else 's'}"
                print(
                    f"the training arrays of {episodes} stay in their workers until they are released, by "
                    f"reference or with: env-client release --broker {shlex.quote(settings.broker or '')} "
                    f"--owner {shlex.quote(owner)}",
                    file=report,
                )
    return _FAILED if tally.exceptions else _OK


async def _run_all(
    settings: ClientSettings,
    owner: str,
    tasks: Sequence[Mapping[str, Any]],
    tally: Tally,
    out: TextIO | None,
) -> None:
    assert settings.broker is not None
    client = EnvClient(
        settings.broker,
        env=settings.env,
        model=settings.model,
        endpoint=settings.model_endpoint(),
        sampling=settings.sampling_params(),
        owner=owner,
        timeout=settings.timeout,
    )
    async with client:
        with open_display(sys.stderr, tally.total) as display:
            batch = Batch(client, tasks, tally, out, settings.env, settings.wait_seconds)
            await batch.run(settings.concurrency, display)


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


@contextmanager
def _opened(path: str | None) -> Iterator[TextIO | None]:
    if path is None or path == "-":
        yield sys.stdout if path else None
        return
    with ExitStack() as stack:
        try:
            # To append, which cuts nothing: what is there may be the only word of arrays that are still held.
            file = stack.enter_context(open(path, "a", encoding="utf-8"))
            status = os.fstat(file.fileno())
        except OSError as error:
            folder = os.path.dirname(path)
            missing = bool(folder) and not os.path.isdir(folder)
            next_step = f"make the folder {folder}, or name" if missing else "name"
            raise SettingsError(
                f"--out {shlex.quote(path)}: {error}; {next_step} a file that can be written"
            ) from error
        if stat.S_ISREG(status.st_mode) and status.st_size:
            raise SettingsError(
                f"--out {shlex.quote(path)}: it is there and has {status.st_size} bytes, which are not "
                "overwritten; name another file, or remove it"
            )
        yield file

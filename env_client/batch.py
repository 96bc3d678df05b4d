"""Running many tasks at once: N asked for, N outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import threading
from typing import TYPE_CHECKING, Any, Final

from env_client.confirmations import pause_seconds
from env_client.errors import PASSING_REASONS, EnvError, InvalidTaskError, ResourceExhaustedError
from env_client.jsonl import outcome_line
from env_client.readiness import Readiness
from env_client.request import new_request_id, task_text
from env_client.tally import UNKNOWN_KIND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TextIO

    from envtrio.v1.episode_pb2 import Episode

    from env_client.client import EnvClient
    from env_client.progress import Display
    from env_client.tally import Tally

_LEAST_PAUSE_SECONDS: Final = 0.05
_DESCRIBE_SECONDS: Final = 2.0


class TasksError(ValueError):
    """A file of tasks that cannot be used; the message names file and line."""


def read_tasks(path: str) -> list[Mapping[str, Any]]:
    """The tasks of a file with one JSON object a line. Empty lines are passed over.

    Raises:
        TasksError: the file cannot be read, a line is no JSON object (NaN and Infinity are not JSON), or
            there is none.
    """
    tasks: list[Mapping[str, Any]] = []
    try:
        with open(path, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    tasks.append(_task(path, number, line))
    except (OSError, UnicodeDecodeError) as error:
        raise TasksError(
            f"--tasks {shlex.quote(path)}: {error}; name a file of JSON lines in UTF-8"
        ) from error
    if not tasks:
        raise TasksError(f"{path}: has no task; put one JSON object on each line")
    return tasks


class Batch:
    """Runs `total` tasks, taken from `tasks` in turn, and hands each outcome to `tally` and `out`.

    Args:
        client: runs them.
        tasks: at least one.
        tally: counts; its `total` is the number of runs.
        out: gets one JSON line for each outcome, as they come; None: nobody does.
        env: the environment that was asked for, if one was: that of a run that has no episode to say.
        wait_seconds: how long runs wait, before they are sent, for a server that takes none. Those that it
            does not take within that time are not sent, and their outcome is the UnavailableError, with the
            reason NOT_ADMITTED where the server gave none. Also how long a run waits in all to be sent again
            that was refused before it began, by a bound (a full queue, the budget for training arrays) or
            because the server stops or has no worker that is ready: each time when the server says, or takes
            runs, and under a new request_id; then its outcome is that refusal.
    """

    def __init__(
        self,
        client: EnvClient,
        tasks: Sequence[Mapping[str, Any]],
        tally: Tally,
        out: TextIO | None,
        env: str | None = None,
        wait_seconds: float = 30.0,
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._tally = tally
        self._out = out
        self._env = env
        self._wait_seconds = wait_seconds
        self._writing = threading.Lock()
        self._has_told = False

    async def run(self, concurrency: int, display: Display) -> None:
        """Run them all, so many at once. Raises only what is no outcome: that a line could not be written."""
        indices = iter(range(self._tally.total))
        readiness = Readiness(self._client, self._wait_seconds, display.say)
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(self._show(display))
            try:
                async with asyncio.TaskGroup() as lanes:
                    for _ in range(min(concurrency, self._tally.total)):
                        lanes.create_task(self._lane(indices, readiness, display))
            finally:
                showing.cancel()
                display.show(self._tally)
        await self._learn_environment()

    async def _show(self, display: Display) -> None:
        while True:
            display.show(self._tally)
            await asyncio.sleep(display.interval_seconds)

    async def _lane(self, indices: Iterator[int], readiness: Readiness, display: Display) -> None:
        for index in indices:
            await self._run_one(index, self._tasks[index % len(self._tasks)], readiness, display)

    async def _run_one(
        self, index: int, task: Mapping[str, Any], readiness: Readiness, display: Display
    ) -> None:
        request_id, outcome = await self._sent(task, readiness, display)
        # Before it is written: an outcome that was delivered counts, whatever the disk says.
        kind = _kind(task, outcome, self._env or UNKNOWN_KIND)
        if isinstance(outcome, Exception):
            self._tally.add_exception(kind, outcome)
        else:
            self._tally.add_episode(kind, outcome)
            if self._env is None:
                self._tally.only_environment = outcome.head.environment
        if self._out is not None:
            await asyncio.to_thread(self._write, index, request_id, task, outcome)

    async def _sent(
        self, task: Mapping[str, Any], readiness: Readiness, display: Display
    ) -> tuple[str, Episode | Exception]:
        """The outcome of a run, sent as often as it takes, and its last request_id."""
        if (unready := await _why_not(readiness)) is not None:
            return new_request_id(), unready
        request_id, outcome = await self._attempt(task, readiness)
        loop, left, refusals = asyncio.get_running_loop(), self._wait_seconds, 1
        while (pause := _pause_before(outcome, refusals)) is not None and pause <= left:
            self._tell(display, outcome)
            refused_at = loop.time()
            await asyncio.sleep(pause)
            if await _why_not(readiness) is not None:
                break  # the refusal stays its outcome
            # Nor is what an attempt takes time in which it was refused, as it may have waited in a queue.
            left -= loop.time() - refused_at
            refusals += 1
            request_id, outcome = await self._attempt(task, readiness)
        return request_id, outcome

    async def _learn_environment(self) -> None:
        """Runs that named no environment were of the only one: ask for it, where no episode has told it."""
        if UNKNOWN_KIND in self._tally.by_kind and self._tally.only_environment is None:
            with contextlib.suppress(EnvError):
                served = (await self._client.describe(timeout=_DESCRIBE_SECONDS)).environments
                self._tally.only_environment = served[0].name if len(served) == 1 else None

    async def _attempt(
        self, task: Mapping[str, Any], readiness: Readiness
    ) -> tuple[str, Episode | Exception]:
        request_id = new_request_id()
        try:
            async with self._client.stream(task, request_id=request_id) as stream:
                before = 0
                async for _ in stream:
                    self._tally.received_bytes += stream.received_bytes - before
                    before = stream.received_bytes
                self._tally.received_bytes += stream.received_bytes - before
                return request_id, await stream.result()
        except Exception as error:
            readiness.heard(error)
            return request_id, error

    def _tell(self, display: Display, refusal: Episode | Exception) -> None:
        """Once: with a full pool there is a refusal for each lane and second."""
        if not self._has_told:
            self._has_told = True
            display.say(
                f"{self._client.target} takes no more runs now ({refusal}); those that it refuses are "
                f"sent again, for up to {self._wait_seconds:g} s each"
            )

    def _write(
        self, index: int, request_id: str, task: Mapping[str, Any], outcome: Episode | Exception
    ) -> None:
        environment = self._env if isinstance(outcome, Exception) else outcome.head.environment
        try:
            line = outcome_line(index, request_id, environment, task, outcome)
        except Exception as error:  # whatever an episode holds, it is no reason to lose the others
            line = outcome_line(index, request_id, environment, task, error)
        assert self._out is not None
        with self._writing:
            self._out.write(line + "\n")
            self._out.flush()


async def _why_not(readiness: Readiness) -> Exception | None:
    """Wait until a run may be sent; why none may, if it does not come to that."""
    try:
        await readiness.wait()
    except Exception as error:
        return error
    return None


def _pause_before(outcome: Episode | Exception, refusals: int) -> float | None:
    """In how many seconds a run comes again that was refused so many times; None where it does not, as what
    has begun may have had effects, and what does not pass ends the same way."""
    if not isinstance(outcome, EnvError) or outcome.reason not in PASSING_REASONS:
        return None
    if isinstance(outcome, ResourceExhaustedError):
        return None if outcome.retry_after is None else max(outcome.retry_after, _LEAST_PAUSE_SECONDS)
    return max(outcome.retry_after or 0.0, pause_seconds(refusals))


def _kind(task: Mapping[str, Any], outcome: Episode | Exception, env: str) -> str:
    dataset = task.get("dataset")
    if isinstance(dataset, str) and dataset:
        return dataset
    return env if isinstance(outcome, Exception) else outcome.head.environment


def _task(path: str, number: int, line: str) -> Mapping[str, Any]:
    next_step = "put one whole JSON object on each line"
    try:
        task = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        # Its own text counts lines too, from this one on.
        place = f"line {number}, column {error.colno}"
        raise TasksError(f"{path}, {place}: {error.msg}; {next_step}") from error
    except (ValueError, RecursionError) as error:
        raise TasksError(f"{path}, line {number}: {error}; {next_step}") from error
    if not isinstance(task, dict):
        raise TasksError(f"{path}, line {number}: found a JSON {type(task).__name__}; {next_step}")
    try:
        task_text(task)  # Python reads what is no JSON, as NaN, and what has no UTF-8.
    except InvalidTaskError as error:
        raise TasksError(f"{path}, line {number}: {error}") from error
    return task

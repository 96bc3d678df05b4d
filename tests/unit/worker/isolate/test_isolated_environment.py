"""An isolated environment makes the episode that it makes in process, and its processes end in time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from env_worker.domain import Episode, EpisodeError, InvalidTaskError, SamplingParams
from env_worker.domain.errors import RemoteError
from env_worker.envs.base import Context, play
from env_worker.envs.registry import EnvironmentLoadError, EnvironmentRegistry
from env_worker.isolate import children as children_module
from env_worker.isolate.children import Children
from env_worker.isolate.environment import EnvironmentDiedError, IsolatedEnvironment
from env_worker.isolate.registry import IsolatedRegistry, load_environments
from env_worker.model.simulated import SimulatedModel
from tests.helpers.episode_view import episode_view
from tests.helpers.harmful_environment import HarmfulEnvironment
from tests.helpers.recording_hook import crc_of_arrays
from tests.helpers.snapshot import alive, descendants, open_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from env_worker.envs.base import Environment

HARMFUL = "harmful=tests.helpers.harmful_environment:HarmfulEnvironment"
SPECS = ("synthetic", HARMFUL)
SECONDS = 20.0


@pytest.fixture(scope="module")
async def isolated() -> AsyncIterator[EnvironmentRegistry]:
    registry = load_environments(SPECS, "process")
    yield registry
    await registry.close(0.0)


@pytest.fixture(scope="module")
def children(isolated: EnvironmentRegistry) -> Children:
    """The processes of `isolated`, whose spares have loaded already."""
    assert isinstance(isolated, IsolatedRegistry)
    return isolated._children


@pytest.fixture(scope="module")
def in_process() -> EnvironmentRegistry:
    return load_environments(SPECS, "none")


def new_context(task: Mapping[str, Any], **fields: Any) -> Context:
    episode = Episode("e" * 32, "any", dict(task), request_id="1" * 32)
    sampling = SamplingParams(seed=3, logprobs=2)
    return Context("1" * 32, task, sampling, SimulatedModel(layers=2, top_k=2), episode, **fields)


async def played(environment: Environment, task: Mapping[str, Any]) -> tuple[Episode, Any]:
    """What it makes of the task, and what it raised."""
    context = new_context(task)
    error = None
    try:
        await asyncio.wait_for(play(environment, context), SECONDS)
    except Exception as raised:
        record = EpisodeError.from_exception(raised, "environment")
        error = (record.type, record.message, record.phase, isinstance(raised, InvalidTaskError))
    return context.episode, error


async def same(task: Mapping[str, Any], one: Environment, other: Environment) -> Episode:
    (episode, error), (twin, its_error) = await played(one, task), await played(other, task)
    assert error == its_error
    assert episode_view(episode, times=False) == episode_view(twin, times=False)
    assert crc_of_arrays(episode) == crc_of_arrays(twin)
    return episode


synthetic_tasks = st.fixed_dictionaries(
    {
        "turns": st.integers(1, 4),
        "tokens_per_turn": st.integers(2, 300),
        "layers": st.integers(0, 8),
        "top_k": st.integers(1, 4),
        "seed": st.integers(0, 1000),
    },
    optional={"fail_at_turn": st.integers(0, 2)},
)


async def test_random_episodes_equal_those_made_in_process(
    isolated: EnvironmentRegistry, in_process: EnvironmentRegistry
) -> None:
    loop = asyncio.get_running_loop()

    @settings(max_examples=5, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(task=synthetic_tasks)
    def check(task: Mapping[str, Any]) -> None:
        checking = same(task, isolated.get("synthetic"), in_process.get("synthetic"))
        asyncio.run_coroutine_threadsafe(checking, loop).result(2 * SECONDS)

    await asyncio.to_thread(check)


async def test_whatever_an_environment_may_write_is_the_same(
    isolated: EnvironmentRegistry, in_process: EnvironmentRegistry
) -> None:
    episode = await same({"do": [["everything"]]}, isolated.get("harmful"), in_process.get("harmful"))
    assert [trace.journal.generation for trace in episode.traces] == [4, 0]
    assert episode.array_bytes > 300_000


@pytest.mark.parametrize(
    "steps", [[["raise", "early"]], [["trace"], ["raise", "late"]], [["invalid", "bad"]]]
)
async def test_failures_are_the_same(
    isolated: EnvironmentRegistry, in_process: EnvironmentRegistry, steps: list[Any]
) -> None:
    await same({"do": steps}, isolated.get("harmful"), in_process.get("harmful"))


def test_it_stands_for_what_it_isolates(
    isolated: EnvironmentRegistry, in_process: EnvironmentRegistry
) -> None:
    assert isolated.names == in_process.names == ("synthetic", "harmful")
    for name in isolated.names:
        described = getattr(in_process.get(name), "description", None)
        assert getattr(isolated.get(name), "description", None) == described


def test_what_cannot_be_loaded_is_refused_at_once() -> None:
    with pytest.raises(EnvironmentLoadError, match="no-such"):
        load_environments(["no-such"], "process")


def isolating(children: Children, spec: str = HARMFUL, grace_seconds: float = 0.2) -> IsolatedEnvironment:
    """An environment whose process has so long a grace."""
    return IsolatedEnvironment(spec, HarmfulEnvironment(), children, grace_seconds=grace_seconds)


@asynccontextmanager
async def processes() -> AsyncIterator[Children]:
    """Processes of their own, for a test that harms them."""
    children = Children()
    try:
        yield children
    finally:
        await children.close(0.0)


async def test_a_spare_that_died_is_not_used(children: Children) -> None:
    environment = isolating(children)
    await environment.run(new_context({"do": [["trace"]]}))
    os.kill(children._spares[HARMFUL].pid, signal.SIGKILL)
    context = new_context({"do": [["trace"]]})
    await environment.run(context)
    assert len(context.episode.traces) == 1


async def test_what_cannot_be_loaded_in_its_process_fails_the_run() -> None:
    async with processes() as children:
        with pytest.raises(RemoteError, match="no built-in environment"):
            await isolating(children, "no-such").run(new_context({}))


async def test_a_process_that_dies_as_it_loads_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os\nprint('here it comes')\nos._exit(5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with processes() as children:
        with pytest.raises(EnvironmentDiedError, match=r"(?s)exit code 5; .*here it comes"):
            await isolating(children, "deadly:Environment").run(new_context({}))


async def test_a_job_that_cannot_be_sent_fails_the_run(children: Children) -> None:
    with pytest.raises(Exception, match="lambda"):
        await isolating(children).run(new_context({"do": [], "function": lambda: None}))


@pytest.fixture
def ignored_children() -> Iterator[None]:
    """As daemons have it, so that the system reaps."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("ignored_children")
async def test_where_somebody_else_reaps_runs_end_all_the_same() -> None:
    async with processes() as children:
        environment = isolating(children)
        await asyncio.wait_for(environment.run(new_context({"do": [["trace"]]})), SECONDS)
        context = new_context({"do": [["trace"], ["pids"], ["print", "last"], ["exit", 7]]})
        with pytest.raises(EnvironmentDiedError, match=r"(?s)something else .* took its exit code; .*last"):
            await asyncio.wait_for(environment.run(context), SECONDS)
        await until_dead(*context.episode.traces[0].info["pids"])


async def test_a_path_that_no_interpreter_looks_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("/"), *sys.path, b"/"])
    async with processes() as children:
        await isolating(children).run(new_context({"do": [["trace"]]}))


async def test_a_process_for_which_there_is_no_thread_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allowed, start = [1], threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("reap-"):
            if not allowed[0]:
                raise RuntimeError("can't start new thread")
            allowed[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    async with processes() as children:
        await isolating(children).run(new_context({"do": [["trace"]]}))
        assert "no process can be kept ready" in caplog.text
        before, below = open_files(os.getpid()), descendants(os.getpid())
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await isolating(children).run(new_context({"do": []}))
        assert not (open_files(os.getpid()) - before)
        assert descendants(os.getpid()).keys() <= below.keys()


async def test_whoever_ends_all_processes_at_once_leaves_it_to_the_worker(children: Children) -> None:
    context = new_context({"do": [["trace"], ["terminate"], ["trace"]]})
    await isolating(children).run(context)
    assert len(context.episode.traces) == 2


@pytest.mark.parametrize(("exit_seconds", "most"), [(0.2, 32), (60.0, 0)])
async def test_a_run_does_not_wait_for_what_its_process_leaves_behind(
    exit_seconds: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children_module, "EXIT_SECONDS", exit_seconds)
    monkeypatch.setattr(children_module, "_MAX_ENDING", most)
    context = new_context({"do": [["trace"], ["pids"], ["linger"]]})
    async with processes() as children:
        await isolating(children).run(context)
        (ending,) = children._endings
        assert not ending.done()
        await until_dead(*context.episode.traces[0].info["pids"])


async def test_cancelled_twice_it_still_has_its_grace(children: Children, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    context = new_context({"do": [["trace"], ["sleep", str(mark)]]})
    running = asyncio.create_task(isolating(children, grace_seconds=SECONDS).run(context))
    await until_opened(context)
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_dead(int(mark.read_text()))


@pytest.mark.parametrize("step", ["hold", "stubborn"])
async def test_after_its_grace_it_is_killed_with_what_it_started(
    step: str, children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    context = new_context({"do": [["trace"], ["pids"], [step]]})
    running = asyncio.create_task(isolating(children).run(context))
    await until_opened(context, "pids")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_dead(*context.episode.traces[0].info["pids"])
    assert "has not ended 0.2 s after it was cancelled, so its process is killed" in caplog.text


async def test_closing_ends_what_still_plays_and_starts_nothing_new() -> None:
    async with processes() as children:
        environment = isolating(children)
        context = new_context({"do": [["trace"], ["pids"], ["hold"]]})
        running = asyncio.create_task(environment.run(context))
        await until_opened(context, "pids")
        await children.close(0.0)
        await until_dead(*context.episode.traces[0].info["pids"])
        with pytest.raises(EnvironmentDiedError, match="killed by the worker: the worker ends"):
            await running
        with pytest.raises(RuntimeError, match="the worker ends"):
            await environment.run(new_context({"do": []}))
        assert not children._spares


async def until_opened(context: Context, key: str = "") -> None:
    """Wait until the first trace is here, with that info."""
    async with asyncio.timeout(SECONDS):
        while not (context.episode.traces and (not key or key in context.episode.traces[0].info)):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)


async def until_dead(*pids: int) -> None:
    """Wait until these processes have ended."""
    async with asyncio.timeout(SECONDS):
        while any(map(alive, pids)):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)

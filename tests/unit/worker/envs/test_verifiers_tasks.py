"""Tasks by their data or by their place in a taskset, which may never end; and serving an environment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.domain import InvalidTaskError
from env_worker.envs.verifiers.serving import Serving
from env_worker.envs.verifiers.tasks import MAX_INDEX, TaskSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Invalid(Exception):
    def errors(self, *, include_url: bool) -> list[dict[str, Any]]:
        return [
            {"loc": ("answer",), "input": 12, "msg": "Input should be a string", "type": "string_type"},
            {"loc": ("prompt",), "input": {}, "msg": "Field required", "type": "missing"},
        ]


class Data:
    model_config: dict[str, str] = {}  # noqa: RUF012  # as pydantic's
    model_fields = {  # noqa: RUF012
        "prompt": SimpleNamespace(exclude=None, alias=None, validation_alias=None),
        "answer": SimpleNamespace(exclude=None, alias="reply", validation_alias=None),
    }

    @staticmethod
    def model_validate(given: dict[str, Any]) -> dict[str, Any]:
        if given.get("answer") == 12:
            raise Invalid
        return given


class Taskset:
    """Counts how far it was read, and from which threads."""

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.read = 0
        self.threads: set[int] = set()
        self.broken = False

    def __iter__(self) -> Iterator[str]:
        self.read = 0
        for index in itertools.count() if self.size is None else range(self.size):
            if self.broken:
                raise OSError("no network")
            self.threads.add(threading.get_ident())
            self.read += 1
            yield f"task {index}"


def source(size: int | None = None, data: Any = Data) -> tuple[TaskSource, Taskset]:
    taskset = Taskset(size)
    made = TaskSource(
        taskset, task_class=lambda data, config: (data, config), data_class=data, config="config",
        invalid=Invalid,
    )  # fmt: skip
    return made, taskset


async def test_by_data() -> None:
    tasks, taskset = source()
    assert await tasks.task({"prompt": "x", "reply": "y"}) == ({"prompt": "x", "reply": "y"}, "config")
    assert taskset.read == 0
    with pytest.raises(
        InvalidTaskError, match=r"'answer' is 12: Input should be a string; .*'prompt' is missing"
    ):
        await tasks.task({"answer": 12})
    with pytest.raises(
        InvalidTaskError, match=r"'answr' is none of Data .did you mean 'answer'.*\{.index.: n\} alone"
    ):
        await tasks.task({"answr": "y"})
    with pytest.raises(InvalidTaskError, match="the task is empty"):
        await tasks.task({})


async def test_by_place_of_a_taskset_without_end() -> None:
    tasks, taskset = source()
    assert await tasks.task({"index": 4}) == "task 4"
    assert await tasks.task({"index": 1}) == "task 1"
    assert taskset.read == 5, "read again, or too far"
    assert threading.get_ident() not in taskset.threads, "read on the loop"
    for wrong, words in ((MAX_INDEX, "between 0 and"), (-1, "between 0 and"), ("1", "an integer")):
        with pytest.raises(InvalidTaskError, match=words):
            await tasks.task({"index": wrong})


async def test_a_task_of_its_number_alone_is_no_task() -> None:
    """All other fields of verifiers' data may have defaults, so that it would be an empty one."""

    class Numbered(Data):
        model_fields = Data.model_fields | {
            "idx": SimpleNamespace(exclude=None, alias=None, validation_alias=None)
        }

    tasks, _ = source(data=Numbered)
    with pytest.raises(InvalidTaskError, match=r"'idx' alone.* give \{.index.: 1\}"):
        await tasks.task({"idx": 1})
    assert await tasks.task({"idx": 1, "prompt": "x"}) == ({"idx": 1, "prompt": "x"}, "config")

    class OnlyNumbered(Numbered):
        model_fields = {"idx": Numbered.model_fields["idx"]}  # noqa: RUF012

    tasks, _ = source(data=OnlyNumbered)
    assert await tasks.task({"idx": 1}) == ({"idx": 1}, "config")


async def test_by_place_of_one_that_ends_or_breaks() -> None:
    tasks, taskset = source(3)
    for _ in range(2):
        with pytest.raises(InvalidTaskError, match="'index' is 3, but the taskset has 3 tasks"):
            await tasks.task({"index": 3})
    assert await tasks.task({"index": 2}) == "task 2"
    tasks, taskset = source()
    taskset.broken = True
    with pytest.raises(OSError, match="no network"):
        await tasks.task({"index": 0})
    taskset.broken = False
    assert await tasks.task({"index": 0}) == "task 0", "it is over for good"


async def test_data_that_json_cannot_carry() -> None:
    class Leaky(Data):
        model_fields = Data.model_fields | {
            "hidden": SimpleNamespace(exclude=True, alias=None, validation_alias=None)
        }

    tasks, _ = source(data=Leaky)
    with pytest.raises(InvalidTaskError, match="do not survive JSON: Leaky leaves out hidden"):
        await tasks.task({"prompt": "x"})
    assert await tasks.task({"index": 0}) == "task 0"


async def test_data_with_an_index_of_their_own_or_open() -> None:
    class Indexed(Data):
        model_fields = Data.model_fields | {
            "index": SimpleNamespace(
                exclude=None, alias=None, validation_alias=SimpleNamespace(choices=["place"])
            )
        }

    tasks, _ = source(data=Indexed)
    assert await tasks.task({"index": 3}) == ({"index": 3}, "config")
    assert await tasks.task({"place": 3}) == ({"place": 3}, "config")

    class Open(Data):
        model_config = {"extra": "allow"}  # noqa: RUF012

    tasks, _ = source(data=Open)
    assert await tasks.task({"anything": 3}) == ({"anything": 3}, "config")


class Served:
    """An environment's `serving()`."""

    def __init__(self) -> None:
        self.entered = self.left = 0
        self.failures: list[Exception] = []
        self.go = asyncio.Event()
        self.go.set()
        self.tasks: set[object] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.tasks.add(asyncio.current_task())
        self.entered += 1
        await self.go.wait()
        if self.failures:
            raise self.failures.pop()
        try:
            yield
        finally:
            self.tasks.add(asyncio.current_task())
            self.left += 1


async def test_it_is_entered_once_and_left_by_the_task_that_entered_it() -> None:
    served = Served()
    serving = Serving(served.serving)
    assert await asyncio.to_thread(serving.close, 1.0), "it was never entered"
    async with serving.run(), serving.run():
        assert (served.entered, served.left) == (1, 0)
    async with serving.run():
        assert (served.entered, served.left) == (1, 0)
    assert await asyncio.to_thread(serving.close, 1.0)
    assert await asyncio.to_thread(serving.close, 1.0), "closed again"
    assert (served.entered, served.left, len(served.tasks)) == (1, 1, 1)
    with pytest.raises(RuntimeError, match="the worker ends"):
        async with serving.run():
            pass


async def test_a_run_that_is_cancelled_while_it_enters_takes_nothing_from_others() -> None:
    served = Served()
    served.go.clear()
    serving = Serving(served.serving)

    async def run() -> str:
        async with serving.run():
            return "ran"

    first, second = asyncio.create_task(run()), asyncio.create_task(run())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    served.go.set()
    assert (await second, first.cancelled(), served.entered) == ("ran", True, 1)
    assert await asyncio.to_thread(serving.close, 1.0)


async def test_what_entering_raises_is_the_runs_and_the_next_tries_again() -> None:
    served = Served()
    served.failures.append(OSError("no port"))
    serving = Serving(served.serving)
    with pytest.raises(OSError, match="no port"):
        async with serving.run():
            pass
    async with serving.run():
        assert served.entered == 2
    assert await asyncio.to_thread(serving.close, 1.0)


async def test_it_is_left_although_a_run_does_not_end() -> None:
    served = Served()
    serving = Serving(served.serving)
    async with serving.run():
        assert not await asyncio.to_thread(serving.close, 0.0), "said that nothing was running"
        assert served.left == 1


def test_after_its_loop_has_ended() -> None:
    served: list[Served] = []
    servings: list[Serving] = []

    async def main() -> None:
        served.append(Served())
        servings.append(Serving(served[0].serving))
        async with servings[0].run():
            pass

    asyncio.run(main())
    assert not servings[0].close(60.0)

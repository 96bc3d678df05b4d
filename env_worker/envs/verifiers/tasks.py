"""Tasks of verifiers from the JSON that a client sends."""

from __future__ import annotations

import asyncio
import threading
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.task_fields import TaskFields, shown
from env_worker.envs.verifiers.validation import said

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_INDEX: Final = 100_000
INDEX: Final = "index"
_NUMBER: Final = "idx"
"""The field of verifiers' data for a task's place."""


class TaskSource:
    """Makes the task of a run: of its data, as `task.data.model_dump(mode="json")` gives them, or of
    `{"index": n}` the n-th task that the taskset yields, from 0.

    A taskset is read as far as was asked for, once, in threads, since it may load or download what it likes.

    Args:
        taskset: verifiers' own, which may yield tasks for ever.
        task_class: what its tasks are.
        data_class: what their data are, a pydantic model.
        config: what the task class is given beside the data.
        invalid: the exception of a model that refuses its data.
    """

    def __init__(
        self, taskset: Any, *, task_class: Any, data_class: Any, config: Any, invalid: type[Exception]
    ) -> None:
        self._taskset: Final = taskset
        self._task_class: Final = task_class
        self._data_class: Final = data_class
        self._config: Final = config
        self._invalid: Final = invalid
        self._lock: Final = threading.Lock()
        self._read: list[Any] = []
        self._rest: Iterator[Any] | None = None
        fields: Mapping[str, Any] = data_class.model_fields
        self._excluded: Final = [name for name, field in fields.items() if field.exclude]
        self._known: Final = sorted({*fields, *_aliases(fields)})
        self._open: Final = data_class.model_config.get("extra") == "allow"
        self._by_index: Final = INDEX not in self._known

    async def task(self, given: Mapping[str, Any]) -> Any:
        """The task that `given` describes. InvalidTaskError naming the field, its value and what is allowed;
        what the taskset raises, if it cannot be read."""
        if self._by_index and set(given) == {INDEX}:
            return await asyncio.to_thread(
                self._at, TaskFields(given, (INDEX,)).integer(INDEX, 0, 0, MAX_INDEX - 1)
            )
        if not given:
            raise InvalidTaskError('the task is empty: give the JSON of a task\'s data, or {"index": 0}')
        if self._by_index and set(given) == {_NUMBER} and _NUMBER in self._known and len(self._known) > 1:
            # All other fields may have defaults, so that it would be a task, and an empty one.
            raise InvalidTaskError(
                f"the task has {_NUMBER!r} alone, which is a part of a task's data: give "
                f'{{"{INDEX}": {shown(given[_NUMBER])}}} to have the taskset\'s own'
            )
        if self._excluded:
            # They are not in the JSON either, so the task would be another.
            raise InvalidTaskError(
                f"tasks of this environment do not survive JSON: {self._data_class.__name__} leaves out "
                f'{", ".join(self._excluded)}: give {{"{INDEX}": n}} instead'
            )
        for key in given:
            if not self._open and key not in self._known:
                close = get_close_matches(key, self._known, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise InvalidTaskError(
                    f"task key {shown(key)} is none of {self._data_class.__name__}{hint}: use "
                    f"{', '.join(self._known)}" + (f', or {{"{INDEX}": n}} alone' if self._by_index else "")
                )
        try:
            data = self._data_class.model_validate(dict(given))
        except self._invalid as error:
            raise InvalidTaskError(said(error, "task key")) from error
        return self._task_class(data, self._config)

    def _at(self, index: int) -> Any:
        with self._lock:
            if self._rest is None:
                self._read = []
                self._rest = iter(self._taskset)
            try:
                while len(self._read) <= index:
                    self._read.append(next(self._rest))
            except StopIteration:
                raise InvalidTaskError(
                    f"task key {INDEX!r} is {index}, but the taskset has {len(self._read)} tasks: lower it"
                ) from None
            except BaseException:
                self._rest = None  # it is over, and may do better next time
                raise
            return self._read[index]


def _aliases(fields: Mapping[str, Any]) -> Iterator[str]:
    for field in fields.values():
        for alias in (field.alias, field.validation_alias):
            if isinstance(alias, str):
                yield alias
            for choice in getattr(alias, "choices", ()):
                if isinstance(choice, str):
                    yield choice

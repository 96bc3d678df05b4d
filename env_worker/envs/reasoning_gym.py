"""Real procedural tasks from the reasoning-gym package (extra `[reasoning-gym]`)."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError, Message
from env_worker.envs.task_fields import TaskFields, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.base import Context

MAX_INDEX: Final = 1_000_000
MAX_SEED: Final = 2**32 - 1
MAX_TRIES: Final = 32
CACHED_DATASETS: Final = 32

# The package always imports pycosat, which takes a C compiler to install; only these use it.
_NEEDS_PYCOSAT: Final = frozenset({"zebra_puzzles"})
_KEYS: Final = ("dataset", "seed", "index", "params", "max_tries")
_TRY_AGAIN: Final = "That answer is wrong. Think again, and give another answer in the same form."


@dataclass(frozen=True, slots=True)
class ReasoningGymTask:
    """A reasoning-gym task, checked. `params` are the dataset's own, as canonical JSON text."""

    dataset: str
    seed: int
    index: int
    params: str
    max_tries: int


@dataclass(slots=True)
class _Shelf:
    """One dataset, once it is built, behind a lock: datasets promise no thread safety."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    dataset: Any = None


class ReasoningGymEnvironment:
    """Asks one question of a reasoning-gym dataset, again up to `max_tries` times while the answer is wrong.

    Task: `{"dataset": "chain_sum", "seed": 0, "index": 0, "params": {"max_terms": 4}, "max_tries": 3}`; all
    but `dataset` may be left out, and so may `dataset` where the environment serves just one
    (`reasoning-gym:chain_sum`). Reward `score` is the package's own score of the last answer, from 0 to 1;
    metrics are `tries` and `first_try` (1 when the first answer scored 1). Building, scoring and the
    package's sympy work happen in threads.

    Raises ImportError when the package is missing, ValueError when it has no dataset of the given name.
    """

    name = "reasoning-gym"
    description = "procedural reasoning tasks of the reasoning-gym package, scored by its own verifiers"

    def __init__(self, dataset: str | None = None) -> None:
        self._has_pycosat = importlib.util.find_spec("pycosat") is not None
        if not self._has_pycosat:
            sys.modules["pycosat"] = ModuleType("pycosat", "Stands in for the missing package.")
        try:
            self._gym = importlib.import_module("reasoning_gym")
        finally:
            if not self._has_pycosat:
                del sys.modules["pycosat"]
        self._registered: Mapping[str, tuple[type, type]] = importlib.import_module(
            "reasoning_gym.factory"
        ).DATASETS
        if dataset is not None and dataset not in self._registered:
            raise ValueError(self._unknown(dataset))
        self._fixed = dataset
        self._shelves: OrderedDict[tuple[str, int, str], _Shelf] = OrderedDict()
        self._shelves_lock = threading.Lock()

    def validate(self, task: Mapping[str, Any]) -> None:
        self._checked(task)

    async def run(self, context: Context) -> None:
        task = self._checked(context.task)
        shelf = self._shelf(task)
        entry = await asyncio.to_thread(self._entry, shelf, task)
        reference = entry["answer"] if isinstance(entry["answer"], str) else None
        trace = context.new_trace(model=context.model.name)
        trace.info["dataset"] = task.dataset
        trace.info["index"] = task.index
        messages = [
            Message.system(self._gym.utils.SYSTEM_PROMPTS["default"]),
            Message.user(entry["question"]),
        ]
        parent: int | None = None
        score, tries = 0.0, 0
        while tries < task.max_tries and score < 1.0:
            turn = await context.model.chat(
                trace, messages, parent=parent, sampling=context.sampling, reference=reference
            )
            score = await asyncio.to_thread(self._score, shelf, entry, turn.message.text)
            tries += 1
            if tries == 1:
                trace.set_metric("first_try", float(score >= 1.0))
            parent, messages = turn.node, [Message.user(_TRY_AGAIN)]
        trace.set_metric("tries", float(tries))
        trace.set_reward("score", score)
        trace.set_stop("solved" if score >= 1.0 else "max_tries")
        trace.finish()

    def _checked(self, task: Mapping[str, Any]) -> ReasoningGymTask:
        fields = TaskFields(task, _KEYS)
        name = fields.text("dataset", self._fixed)
        if self._fixed is not None and name != self._fixed:
            raise InvalidTaskError(
                f"task key 'dataset' is {shown(name)}, but this environment serves {self._fixed!r} alone: "
                "leave the key out, or ask an environment that serves all datasets"
            )
        if name not in self._registered:
            raise InvalidTaskError(self._unknown(name))
        if name in _NEEDS_PYCOSAT and not self._has_pycosat:
            raise InvalidTaskError(
                f"task key 'dataset' is {shown(name)}, which this worker cannot build: it needs the package "
                "pycosat, and that a C compiler; install both on the worker, or ask for another dataset"
            )
        seed = fields.integer("seed", 0, 0, MAX_SEED)
        params = fields.mapping("params")
        checked = ReasoningGymTask(
            dataset=name,
            seed=seed,
            index=fields.integer("index", 0, 0, MAX_INDEX - 1),
            params=json.dumps(params, sort_keys=True),
            max_tries=fields.integer("max_tries", 3, 1, MAX_TRIES),
        )
        size = getattr(self._config(checked), "size", MAX_INDEX)
        if not isinstance(size, int) or not 1 <= size <= MAX_INDEX:
            raise InvalidTaskError(
                f"'size' in task key 'params' is {shown(size)}, "
                f"but must be an integer between 1 and {MAX_INDEX}"
            )
        if checked.index >= size:
            raise InvalidTaskError(
                f"task key 'index' is {checked.index}, but the dataset has {size} entries: "
                "lower it, or raise 'size' in task key 'params'"
            )
        return checked

    def _config(self, task: ReasoningGymTask) -> Any:
        params = json.loads(task.params)
        if "seed" in params:
            raise InvalidTaskError(
                f"'seed' in task key 'params' is {shown(params['seed'])}: give it as task key 'seed' instead"
            )
        try:
            config = self._registered[task.dataset][1](seed=task.seed, **params)
            if hasattr(config, "validate"):
                config.validate()
        except Exception as error:  # the package checks with asserts, and fails as it may on other types
            raise self._bad_params(task, error) from error
        return config

    def _shelf(self, task: ReasoningGymTask) -> _Shelf:
        key = (task.dataset, task.seed, task.params)
        with self._shelves_lock:
            shelf = self._shelves.setdefault(key, _Shelf())
            self._shelves.move_to_end(key)
            while len(self._shelves) > CACHED_DATASETS:
                self._shelves.popitem(last=False)
        return shelf

    def _entry(self, shelf: _Shelf, task: ReasoningGymTask) -> dict[str, Any]:
        """The task's entry. Raises InvalidTaskError when the dataset cannot be built from its params."""
        with shelf.lock:
            try:
                if shelf.dataset is None:
                    shelf.dataset = self._registered[task.dataset][0](config=self._config(task))
                entry: dict[str, Any] = shelf.dataset[task.index]
            except InvalidTaskError:
                raise
            except Exception as error:
                raise self._bad_params(task, error) from error
        return entry

    def _score(self, shelf: _Shelf, entry: dict[str, Any], text: str) -> float:
        """The package's score of the answer in `text`: between the last tags, or all of it without tags."""
        extracted = self._gym.utils.extract_answer(text)
        answer = text.strip() if extracted is None else extracted
        with shelf.lock:
            try:
                return float(shelf.dataset.score_answer(answer, entry))
            except Exception:
                # Some scorers raise on an answer that they cannot parse. Such an answer is wrong; a scorer
                # that cannot score its own reference is broken, and a failure must never look like a zero.
                if answer == entry["answer"]:
                    raise
                shelf.dataset.score_answer(entry["answer"], entry)
                return 0.0

    def _unknown(self, name: str) -> str:
        close = get_close_matches(name, self._registered, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "see its gallery of datasets."
        return f"dataset {shown(name)} is none of the {len(self._registered)} of reasoning-gym: {hint}"

    def _bad_params(self, task: ReasoningGymTask, error: Exception) -> InvalidTaskError:
        return InvalidTaskError(
            f"dataset {task.dataset!r} refused task key 'params' {shown(task.params)} "
            f"({type(error).__name__}: {shown(str(error))}): correct them, or leave them out for its defaults"
        )

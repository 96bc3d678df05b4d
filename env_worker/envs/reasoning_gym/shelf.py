"""Datasets that are built already, and what is read from them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError
from env_worker.envs.reasoning_gym.catalogue import COMPOSITE, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.reasoning_gym.catalogue import Catalogue
    from env_worker.envs.reasoning_gym.task import ReasoningGymTask

CACHED_DATASETS: Final = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """One question. `dataset` is the one that it is of, also in a mix; `reference` a right answer, where the
    dataset has one; `raw` what the package's scorers want."""

    dataset: str
    question: str
    reference: str | None
    raw: Mapping[str, Any]


class Shelf:
    """One dataset, built when it is first asked, behind a lock: datasets promise no thread safety.

    What it does may take seconds: call it in a thread.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue: Final = catalogue
        self._lock: Final = threading.Lock()
        self._dataset: Any = None

    def entry(self, task: ReasoningGymTask) -> Entry:
        """The task's entry. Raises InvalidTaskError when the dataset cannot be built from its params."""
        key = "datasets" if task.dataset == COMPOSITE else "params"
        with self._lock:
            try:
                if self._dataset is None:
                    config = self._catalogue.config(task.dataset, task.seed, json.loads(task.params), key)
                    self._dataset = self._catalogue.build(task.dataset, config)
                raw = self._dataset[task.index]
                name = raw["metadata"]["source_dataset"] if task.dataset == COMPOSITE else task.dataset
            except InvalidTaskError:
                raise
            except Exception as error:
                raise refused(task.dataset, task.params, key, error) from error
        reference = raw["answer"] if isinstance(raw["answer"], str) else None
        return Entry(dataset=name, question=raw["question"], reference=reference, raw=raw)

    def score(self, entry: Entry, text: str) -> float:
        """The package's own score, from 0 to 1, of the answer in a model's `text`."""
        answer = self._catalogue.answer_in(text)
        with self._lock:
            try:
                return float(self._dataset.score_answer(answer, entry.raw))
            except BaseException:
                # Some scorers raise on an answer that they cannot parse, and those that evaluate it whatever
                # it says: SystemExit for `exit()`, which would end the loop. Such an answer is wrong; but a
                # scorer that cannot score its own reference is broken, and a failure is never a zero.
                if answer == entry.raw["answer"]:
                    raise
                self._dataset.score_answer(entry.raw["answer"], entry.raw)
                return 0.0


class Shelves:
    """The shelves of the datasets that were asked for last, at most CACHED_DATASETS."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue: Final = catalogue
        self._shelves: Final[OrderedDict[tuple[str, int, str], Shelf]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def __len__(self) -> int:
        return len(self._shelves)

    def of(self, task: ReasoningGymTask) -> Shelf:
        """Where the task's dataset is."""
        key = (task.dataset, task.seed, task.params)
        with self._lock:
            if key not in self._shelves:
                self._shelves[key] = Shelf(self._catalogue)
            self._shelves.move_to_end(key)
            while len(self._shelves) > CACHED_DATASETS:
                self._shelves.popitem(last=False)
            return self._shelves[key]

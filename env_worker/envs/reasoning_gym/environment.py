"""The environment `reasoning-gym`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import InvalidTaskError, Message
from env_worker.envs.reasoning_gym.catalogue import Catalogue
from env_worker.envs.reasoning_gym.fixed import description, fixed_keys
from env_worker.envs.reasoning_gym.shelf import Shelves
from env_worker.envs.reasoning_gym.task import ReasoningGymTask, read_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.envs.base import Context

_TRY_AGAIN: Final = "That answer is wrong. Think again, and give another answer in the same form."


class ReasoningGymEnvironment:
    """Asks one question of a reasoning-gym dataset, again up to `max_tries` times while the answer is wrong.

    Task: `{"dataset": "chain_sum", "seed": 0, "index": 0, "params": {"max_terms": 4}, "max_tries": 3,
    "system_prompt": "default"}`; all but `dataset` may be left out. In its place `"datasets": [{"name":
    "chain_sum", "weight": 2.0, "params": {"max_terms": 4}}, {"name": "gcd"}]` is a mix, the package's
    composite of `"size": 500` entries, each of one dataset by `seed` and `index`.

    `argument` fixes keys of all tasks: a dataset's name (`reasoning-gym:chain_sum`), or a file that has them
    (`reasoning-gym:mix.yaml`; .json and .toml too).

    Reward `score` is the package's own score of the last answer, from 0 to 1, however the model came to its
    end; metrics are `tries` and `first_try` (1 when the first answer scored 1); `info["dataset"]` says which
    dataset the question was of. There is no reward where no answer came: what the model client raises ends
    the episode. Building, scoring and the package's sympy work happen in threads.

    Raises ImportError when the package is missing, ValueError when it has no dataset of the given name or the
    file is not what it should be.
    """

    name = "reasoning-gym"

    def __init__(self, argument: str | None = None) -> None:
        self._catalogue: Final = Catalogue()
        self._shelves: Final = Shelves(self._catalogue)
        self._fixed: Final = fixed_keys(argument, self._catalogue)
        if self._fixed:
            try:
                self._checked({})
            except InvalidTaskError as error:
                raise ValueError(f"{argument}: {error}") from error
        self.description: Final = description(self._fixed)

    def validate(self, task: Mapping[str, Any]) -> None:
        """Raises InvalidTaskError, naming key, value and limit. Builds nothing."""
        self._checked(task)

    async def run(self, context: Context) -> None:
        """See the class."""
        task = self._checked(context.task)
        shelf = self._shelves.of(task)
        entry = await asyncio.to_thread(shelf.entry, task)
        trace = context.new_trace(model=context.model.name)
        trace.info["dataset"] = entry.dataset
        trace.info["index"] = task.index
        messages = [Message.system(task.system_prompt), Message.user(entry.question)]
        parent: int | None = None
        score, tries = 0.0, 0
        while tries < task.max_tries and score < 1.0:
            turn = await context.model.chat(
                trace, messages, parent=parent, sampling=context.sampling, reference=entry.reference
            )
            score = await asyncio.to_thread(shelf.score, entry, turn.message.text)
            tries += 1
            if tries == 1:
                trace.set_metric("first_try", float(score >= 1.0))
            parent, messages = turn.node, [Message.user(_TRY_AGAIN)]
        trace.set_metric("tries", float(tries))
        trace.set_reward("score", score)
        trace.set_stop("solved" if score >= 1.0 else "max_tries")
        trace.finish()

    def _checked(self, task: Mapping[str, Any]) -> ReasoningGymTask:
        return read_task(task, self._fixed, self._catalogue)

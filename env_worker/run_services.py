"""What all runs of a worker share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from env_worker.domain.ledger import Event
    from env_worker.environment_loop import EnvironmentLoop
    from env_worker.hook import EpisodeHook, HookThreads
    from env_worker.run import Run
    from env_worker.slots import Slots
    from env_worker.status import Refusal
    from env_worker.wake_ups import WakeUps


class Settle(Protocol):
    """Settles a run's entry; True for whoever moved it. The refusal is what the caller then hears."""

    def __call__(self, run: Run, event: Event, refusal: Refusal | None = None) -> bool: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Made by the runner, once."""

    instance: str
    clock: Callable[[], float]
    slots: Slots
    environments: EnvironmentLoop
    wake_ups: WakeUps
    threads: HookThreads
    hook: Callable[[], EpisodeHook | None]
    adopt: Callable[[EpisodeHook], None]
    """Called with a hook before its `keep`; raises where this worker cannot use it."""
    settle: Settle

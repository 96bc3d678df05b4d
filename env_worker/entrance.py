"""How a run comes in, be it by a call of its own or in a session: so that the two cannot differ."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from envtrio.v1 import errors_pb2

from env_worker.request import read_request
from env_worker.status import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from envtrio.v1.env_service_pb2 import RunRequest

    from env_worker.envs.registry import EnvironmentRegistry
    from env_worker.model.engines import Engines
    from env_worker.port import RunPort
    from env_worker.run import Run, RunSpec
    from env_worker.runner import Runner

logger = logging.getLogger(__name__)


class Entrance:
    """Reads requests and has their runs admitted.

    Args:
        runner: who admits and carries them.
        named: told of the session that an admitted run names.
        clock: monotonic seconds, for deadlines.
    """

    def __init__(
        self,
        runner: Runner,
        environments: EnvironmentRegistry,
        engines: Engines,
        *,
        named: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._runner: Final = runner
        self._environments: Final = environments
        self._engines: Final = engines
        self._named: Final = named
        self._clock: Final = clock

    def deadline(self, remaining_seconds: float | None) -> float | None:
        """The deadline, in seconds of the clock, of a run that has so long; None: none."""
        return None if remaining_seconds is None else self._clock() + remaining_seconds

    def read(self, request: RunRequest, deadline: float | None) -> RunSpec:
        """What `request` asks for. Refusal if it cannot be run. A large one may be read in a thread."""
        return read_request(request, self._environments, self._engines, deadline)

    def admit(self, spec: RunSpec, port: RunPort[Refusal], size: int) -> Run:
        """Admit a run whose request has `size` bytes, and carry it to `port`. Refusal if it is not admitted.

        Whoever gets the run back calls `caller_gone` when its caller is, whatever happens.
        """
        self._named(spec.session_id)
        return self._runner.start(spec, port, size)

    def caller_gone(self, run: Run) -> None:
        """Nobody waits for the run any more, for whatever reason. After its delivery this means nothing."""
        self._runner.caller_gone(run)


def fault(error: Exception) -> Refusal:
    """What the caller hears of an exception that nobody foresaw, which is in the log then. Call it where it
    is handled."""
    logger.exception("reason=INTERNAL a fault of the worker itself")
    said = f"{type(error).__name__}: {error}; report it with the worker's log"
    return Refusal(errors_pb2.ERROR_REASON_INTERNAL, said)


def log_refusal(refusal: Refusal) -> None:
    """What a caller is told is in the log too."""
    logger.info("reason=%s %s", refusal.reason_name, refusal.message)

"""Engine models over a scripted engine, for tests that ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from env_worker.domain import Episode, Message, Trace
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine
from env_worker.model.engine_model import EngineModel
from env_worker.model.retry import Backoff

if TYPE_CHECKING:
    from tests.engine import ScriptedEngine

QUESTION = Message.user("How many legs have 3 cats? 🐈🐈🐈")
ROUTED = EngineOptions(frozenset({"routed_experts"}), logprobs_mode="raw")


class Pauses:
    """Slept through at once, and noted."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def model_of(engine: ScriptedEngine, dialect: str = "vllm-chat", **fields: Any) -> EngineModel:
    """A run's model at `engine`, which asks for routing and pauses for nothing unless `fields` say so."""
    fields = {"options": ROUTED, "backoff": Backoff(sleep=Pauses().sleep), **fields}
    return EngineModel(Engine(engine.url, "scripted", dialect), **fields)


async def active(engine: ScriptedEngine, count: int) -> None:
    """Wait until so many requests are under way."""
    await engine.until(lambda engine: engine.active == count)


def new_trace() -> Trace:
    """The trace of an episode of its own."""
    return Episode("episode", "test", {}).new_trace()


def errors_of(trace: Trace) -> list[tuple[int, str]]:
    """Attempt and error of each Call."""
    return [(call.attempt, call.error.type if call.error else "") for call in trace.calls]

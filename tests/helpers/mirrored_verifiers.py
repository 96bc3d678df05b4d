"""An episode of verifiers that is mirrored into one of ours, as a test drives it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from env_worker.domain import Episode
from env_worker.envs.verifiers.asked import Asked
from env_worker.envs.verifiers.mirror import EpisodeMirror
from env_worker.model.engine import Engine
from tests.helpers.fake_verifiers import FakeTrace

ENGINE = Engine("http://engine:8000/v1", "m")


class Stage:
    """An episode, its mirror, and the traces of the attempt that runs."""

    def __init__(self, engine: Engine = ENGINE, **asked: Any) -> None:
        self.episode = Episode("e" * 32, "env", {})
        slot = self.slot = SimpleNamespace(traces=[])
        self.mirror = EpisodeMirror(self.episode, lambda: slot.traces, Asked(engine, **asked))

    @property
    def traces(self) -> list[FakeTrace]:
        found: list[FakeTrace] = self.slot.traces
        return found

    def mint(self, **fields: Any) -> FakeTrace:
        trace = FakeTrace(**fields)
        self.traces.append(trace)
        self.mirror.minted(trace)
        return trace

    def finish(self, *, ok: bool = True, errors: list[Any] | None = None) -> None:
        for trace in self.traces:
            trace.is_completed = True
        self.mirror.finish(SimpleNamespace(traces=self.traces, errors=errors or [], ok=ok))

    def discarded(self) -> list[str]:
        return [trace.id for trace in self.episode.take_touched() if trace.discarded]


async def turned() -> None:
    """Let what was scheduled run."""
    await asyncio.sleep(0)

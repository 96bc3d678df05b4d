"""What a trainer fetches equals the nodes' arrays, byte for byte: through keeper, service and client."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from env_client import ArraysIncompleteError, SyncArrayClient
from env_worker import ArrayKeeper
from env_worker.domain import TRAINING_ARRAY_FIELDS, Episode, SamplingParams
from tests.helpers.array_episodes import is_empty
from tests.helpers.array_plans import NAMES, TracePlan, expected, is_complete, trace_plans
from tests.helpers.array_worker import array_worker
from tests.helpers.stub_client import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from env_worker.domain import Trace


PATIENCE_SECONDS = 30.0


class Subject:
    """A worker whose keeper keeps what a test gives it, and a client for each way to its memory."""

    def __init__(self, keeper: ArrayKeeper) -> None:
        self.keeper = keeper
        self.clients = (SyncArrayClient(shared_memory=True), SyncArrayClient(shared_memory=False))

    def keep(self, plan: TracePlan) -> tuple[Trace, list[dict[str, Any]]]:
        """A trace as it was kept, and the references to its branches."""
        episode = Episode(new_id(), "test", {})
        trace = plan.write(episode.new_trace())
        self.keeper.keep(episode, SamplingParams())
        references: Any = trace.info["training_arrays"]
        return trace, references

    def until_free(self) -> None:
        """Wait for the fetches to end in the worker, which hold what they read a moment longer than the
        trainer needs to have all of it; then nothing is held."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not is_empty(self.keeper.array_store):
            assert time.monotonic() < end, "something is held for good"
            time.sleep(0.001)


@pytest.fixture(scope="module")
async def subject() -> AsyncIterator[Subject]:
    """One for all examples."""
    keeper = ArrayKeeper(memory_bytes=2**26)
    async with array_worker(keeper, drain_seconds=0, linger_seconds=0):
        kept = Subject(keeper)
        yield kept
        for client in kept.clients:
            client.close()


async def test_what_is_fetched_is_what_the_nodes_hold(subject: Subject) -> None:
    await asyncio.to_thread(_examples(subject))


def _examples(subject: Subject) -> Callable[[], None]:
    # Called in a thread: the worker serves on the loop meanwhile.
    @settings(max_examples=40)
    @given(plan=trace_plans, data=st.data())
    def check(plan: TracePlan, data: st.DataObject) -> None:
        trace, references = subject.keep(plan)
        try:
            for path, reference in zip(trace.branches(), references, strict=True):
                compare(trace, path, reference, data)
        finally:  # also of an example that is given up
            assert subject.clients[0].release(*references) == len(references)
        subject.until_free()

    def compare(trace: Trace, path: Sequence[int], reference: dict[str, Any], data: st.DataObject) -> None:
        fields = data.draw(st.lists(st.sampled_from(TRAINING_ARRAY_FIELDS), min_size=1, unique=True))
        start = data.draw(st.integers(0, reference["tokens"]))
        end = data.draw(st.integers(start, reference["tokens"]))
        for client in subject.clients:
            if not all(is_complete(trace, path, field) for field in fields):
                with pytest.raises(ArraysIncompleteError):
                    client.fetch(reference, fields, slice(start, end))
                continue
            found = client.fetch(reference, fields, slice(start, end))
            wanted = dict(expected(trace, path, fields, start, end))
            assert list(found) == [name for field in fields for name in NAMES[field]]
            for name, array in wanted.items():
                assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
                assert found[name].tobytes() == array.tobytes(), name

    return check

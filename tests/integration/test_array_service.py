"""TrainingArrayService on a worker: what it gives out is what was kept, and what it refuses it names."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import google_crc32c
import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from env_worker import ArrayKeeper, set_episode_hook
from env_worker.config import WorkerSettings
from env_worker.hook import HookLoadError
from env_worker.server import WorkerServer
from tests.helpers.array_service import ArrayCalls, array_service, laid_out
from tests.helpers.array_worker import array_worker, references
from tests.helpers.failure import Failure, failure_of
from tests.helpers.kept_arrays import RememberingKeeper, assert_equal
from tests.helpers.runner_harness import within
from tests.helpers.stub_client import OPTIONS, new_id
from tests.helpers.worker_server import SMALL, serving_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from env_worker.domain import Episode, SamplingParams
    from tests.helpers.array_service import ArrayService, Reference
    from tests.helpers.array_worker import ArrayWorker
    from tests.helpers.stub_client import Outcome

MIB = 2**20
BRANCHING = {"turns": 4, "tokens_per_turn": 30, "layers": 3, "top_k": 2, "branches": 3}
FIELDS = ("routed_experts", "sampling_mask", "top_logprobs")
CAPABILITIES = ["sessions", "session-runs", "training-arrays"]


@pytest.fixture(scope="module", params=["memory", "spill"])
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ArrayService]:
    spill = tmp_path_factory.mktemp("spill") if request.param == "spill" else None
    async with array_service(spill) as service:
        yield service


@pytest.fixture(scope="module")
async def reference(service: ArrayService) -> Reference:
    """Of 9,001 tokens, whose arrays are more than three pieces."""
    return service.keep(9_001)


@pytest.mark.parametrize("start", [0, 1, 4_000, 9_000])
@pytest.mark.parametrize("end", [None, 9_001, 9_000, 4_001])
async def test_every_range_is_what_was_kept(
    service: ArrayService, reference: Reference, start: int, end: int | None
) -> None:
    last = 9_001 if end is None else end
    if start > last:
        start = last
    fields = {} if end is None else {"token_end": end}
    fetched = await service.calls.fetch(reference, token_start=start, **fields)
    assert_equal(fetched.arrays, service.keeper.branches[reference["key"]].of(start, last))
    assert fetched.descriptor is not None
    assert (fetched.descriptor.token_start, fetched.descriptor.token_end) == (start, last)
    assert fetched.descriptor.body_crc32c == google_crc32c.value(fetched.body)
    assert {len(piece) for piece in fetched.pieces[:-1]} <= {MIB}
    assert not fetched.descriptor.transports, "nobody asked for another one"


@pytest.mark.parametrize("fields", [["top_logprobs"], ["sampling_mask", "routed_experts"], []])
async def test_fields_are_sent_as_they_were_asked_for(
    service: ArrayService, reference: Reference, fields: list[str]
) -> None:
    found = (await service.calls.fetch(reference, fields=fields)).arrays
    assert list(dict.fromkeys(name.partition(".")[0] for name in found)) == (fields or list(FIELDS))


async def test_an_empty_range_has_a_descriptor_and_no_piece(
    service: ArrayService, reference: Reference
) -> None:
    fetched = await service.calls.fetch(reference, token_start=7, token_end=7)
    assert fetched.pieces == []
    assert fetched.arrays["routed_experts"].shape == (0, 48, 8)


async def test_a_caller_of_this_host_maps_the_bytes_instead(
    service: ArrayService, reference: Reference
) -> None:
    wanted = {"token_start": 5, "token_end": 8_000, "transports": ["rdma", "memfd"]}
    fetched = await service.calls.fetch(reference, **wanted)
    assert fetched.failure is None
    assert fetched.descriptor is not None
    assert fetched.pieces == [], "no pieces follow"
    [offer] = fetched.descriptor.transports
    assert offer.transport == "memfd"
    given = offer.parameters
    file = os.open(f"/proc/{int(given['pid'])}/fd/{int(given['fd'])}", os.O_RDONLY)
    try:
        assert os.fstat(file).st_size == int(given["size"])
        header = f"envtrio-arrays-1{reference['instance']}{given['segment']}".encode()
        assert os.pread(file, len(header), 0) == header
        parts = [part for array in given["extents"].split(";") for part in array.split(",") if part]
        body = b"".join(os.pread(file, int(b), int(a)) for a, b in (p.split("+") for p in parts))
    finally:
        os.close(file)
    assert google_crc32c.value(body) == fetched.descriptor.body_crc32c
    found = laid_out(fetched.descriptor, body)
    assert_equal(found, service.keeper.branches[reference["key"]].of(5, 8_000))


async def test_a_transport_that_nobody_has_leaves_the_stream(
    service: ArrayService, reference: Reference
) -> None:
    fetched = await service.calls.fetch(reference, transports=["rdma"], token_end=10)
    assert fetched.descriptor is not None
    assert not fetched.descriptor.transports
    assert len(fetched.body) == fetched.descriptor.body_bytes > 0


ELSEWHERE = "0123456789abcdef" * 2
INVALID = ("INVALID_ARGUMENT", "INVALID_REQUEST")
RANGE = ("OUT_OF_RANGE", "TOKEN_RANGE")
GENERATION = ("FAILED_PRECONDITION", "PROTOCOL_GENERATION")


@pytest.mark.parametrize(
    ("fields", "kind", "words", "metadata"),
    [
        ({"protocol_generation": 2}, GENERATION, ["is 2", "speaks 1"], {"theirs": "2"}),
        ({"instance": ""}, INVALID, ["instance", "0 characters"], {"field": "instance"}),
        ({"instance": ELSEWHERE}, ("NOT_FOUND", "ARRAYS_LOST"), ["01234567"], {"value": "01234567"}),
        ({"key": "x" * 32}, INVALID, ["key", "'xxxxxxxx'"], {"field": "key"}),
        ({"key": "A" * 32}, INVALID, ["lower-case"], {"field": "key"}),
        ({"key": ELSEWHERE}, ("NOT_FOUND", "ARRAYS_NOT_FOUND"), ["key 01234567", "released"], {}),
        ({"fields": ["rewards"]}, INVALID, ["'rewards'", *FIELDS], {"field": "fields"}),
        ({"fields": ["routed_experts"] * 2}, INVALID, ["twice"], {"value": "routed_experts"}),
        ({"token_end": 9_002}, RANGE, ["0 to 9002", "9001 tokens"], {"limit": "9001"}),
        ({"token_start": 9_002}, RANGE, ["9002", "9001 tokens"], {}),
        ({"token_start": 2, "token_end": 1}, RANGE, ["2 to 1"], {"value": "2 to 1"}),
        ({"token_start": 2**64 - 1}, RANGE, ["9001 tokens"], {}),
    ],
)  # fmt: skip
async def test_what_is_refused_is_named(
    service: ArrayService,
    reference: Reference,
    fields: dict[str, Any],
    kind: tuple[str, str],
    words: list[str],
    metadata: dict[str, str],
) -> None:
    failure = (await service.calls.fetch(reference, **fields)).failure
    assert failure is not None
    assert failure.kind == kind
    for word in words:
        assert word in failure.message
    assert metadata.items() <= failure.metadata.items()
    for secret in (reference["key"], ELSEWHERE):
        assert secret not in failure.message, "a key is a capability"


async def test_bytes_that_are_no_request_are_refused(service: ArrayService) -> None:
    async def failure(call: Any) -> Failure:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        return failure_of(error.value)

    refused = await failure(anext(aiter(service.calls.raw_fetch(b"\xff", timeout=10))))
    assert refused.kind == INVALID
    assert "no FetchRequest" in refused.message
    refused = await failure(service.calls.raw_release(b"\xff", timeout=10))
    assert "no ReleaseRequest" in refused.message


# Release.


async def test_what_was_released_is_not_found_at_once_and_again_it_is_no_error(service: ArrayService) -> None:
    ours, other = service.keep(100), service.keep(50)
    instance, keys = ours["instance"], [ours["key"], ours["key"], new_id(), "no key"]
    assert await service.calls.release(keys, instance=ELSEWHERE) == (0, 4, 0), "another instance's"
    before = service.store.held_array_bytes
    answer = await service.calls.release(keys, instance=instance)
    assert isinstance(answer, tuple)
    assert answer[:2] == (1, 3)
    assert answer[2] == before - service.store.held_array_bytes > 0
    failure = (await service.calls.fetch(ours)).failure
    assert failure is not None
    assert failure.reason == "ARRAYS_NOT_FOUND"
    assert await service.calls.release(keys, instance=instance) == (0, 4, 0)
    assert (await service.calls.fetch(other)).failure is None


async def test_an_owner_releases_all_of_its_runs(service: ArrayService) -> None:
    mine, theirs = [service.keep(10, owner="me") for _ in range(3)], service.keep(10, owner="them")
    answer = await service.calls.release(owner="me")
    assert isinstance(answer, tuple)
    assert answer[:2] == (3, 0)
    assert await service.calls.release(owner="me") == (0, 0, 0)
    assert {(await service.calls.fetch(one)).failure.reason for one in mine} == {"ARRAYS_NOT_FOUND"}  # type: ignore[union-attr]
    assert (await service.calls.fetch(theirs)).failure is None


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "target is not set"),
        ({"owner": ""}, "owner is empty"),
        ({"owner": "ä" * 129}, "owner has 258 bytes, the limit is 256"),
        ({"keys": []}, "no keys"),
        ({"owner": "me", "protocol_generation": 0}, "protocol_generation is 0"),
    ],
)
async def test_a_release_of_nothing_named_is_refused(
    service: ArrayService, asked: dict[str, Any], words: str
) -> None:
    failure = await service.calls.release(**asked)
    assert isinstance(failure, Failure)
    assert words in failure.message


async def test_a_hundred_thousand_keys_are_released_beside_everything_else(service: ArrayService) -> None:
    ours = service.keep(10)
    keys = [new_id() for _ in range(99_999)]
    answer = await service.calls.release([*keys, ours["key"]], instance=ours["instance"])
    assert isinstance(answer, tuple)
    assert answer[:2] == (1, 99_999)


async def test_requests_that_would_hold_the_worker_up_are_refused_before_they_are_read(
    service: ArrayService, reference: Reference
) -> None:
    empty_field, empty_transport = b"\x22\x00", b"\x3a\x00"
    for entries in (empty_field * 32_768, empty_transport * 32_768):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await anext(aiter(service.calls.raw_fetch(entries + b"\x08\x01", timeout=10)))
        refused = failure_of(error.value)
        assert refused.kind == INVALID
        assert "FetchRequest has 65538 bytes, the limit is 65536" in refused.message
        assert (refused.metadata["value"], refused.metadata["limit"]) == ("65538", "65536")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await service.calls.raw_release(bytes(4 * MIB + 1), timeout=10)
    refused = failure_of(error.value)
    assert refused.kind == INVALID
    assert "ReleaseRequest has 4194305 bytes, the limit is 4194304; release at most 100000" in refused.message
    over = await service.calls.release([""] * 100_001, instance=reference["instance"])
    assert isinstance(over, Failure)
    assert over.kind == INVALID
    assert "references has 100001 keys, the limit is 100000; release at most 100000" in over.message


# On a worker.


async def test_every_branch_of_an_episode_is_fetched_as_the_reply_refers_to_it() -> None:
    keeper = RememberingKeeper()
    async with array_worker(keeper) as worker:
        found = references(await worker.client.run(BRANCHING))
        assert len(found) == 3
        for reference in found:
            assert len(json.dumps(reference)) < 1024
            assert reference["instance"] == worker.server.instance
            assert reference["address"] == worker.server.address
            fetched = await worker.calls.fetch(reference)
            branch = keeper.branches[reference["key"]]
            assert_equal(fetched.arrays, branch.of(0, branch.tokens))
        assert (await worker.client.describe()).capabilities == CAPABILITIES
        run = await worker.client.run(SMALL)
        assert await worker.client.cancel(run.run) == "DISCARDED"
        await within(
            worker.server.runner.wait_hooks()
        )  # the answer is a decision, the hook's call comes after it
        [discarded] = references(run)
        failure = (await worker.calls.fetch(discarded)).failure
        assert failure is not None
        assert failure.reason == "ARRAYS_NOT_FOUND"
    assert keeper.held_arrays == 0, "arrays end with their worker"


async def test_a_field_with_a_hole_is_never_given_out() -> None:
    async with array_worker(ArrayKeeper()) as worker:
        [reference] = references(await worker.client.run({**SMALL, "layers": 0}))
        assert set(reference["incomplete"]) == set(FIELDS)
        assert (await worker.calls.fetch(reference)).arrays == {}, "all that are complete"
        failure = (await worker.calls.fetch(reference, fields=["sampling_mask"])).failure
        assert failure is not None
        assert failure.kind == ("FAILED_PRECONDITION", "ARRAYS_INCOMPLETE")
        assert failure.metadata["field"] == "sampling_mask"
        assert failure.metadata["hole"] == reference["incomplete"]["sampling_mask"]


async def test_what_an_earlier_hook_kept_is_served_on_and_counts_as_held() -> None:
    first, second = RememberingKeeper(), RememberingKeeper()
    try:
        set_episode_hook(first)
        async with array_worker(None) as worker:
            [old] = references(await worker.client.run(SMALL, owner="me"))
            set_episode_hook(second)
            [new] = references(await worker.client.run(SMALL, owner="me"))
            set_episode_hook(None)
            for keeper, reference in ((first, old), (second, new)):
                fetched = await worker.calls.fetch(reference)
                assert_equal(fetched.arrays, keeper.branches[reference["key"]].of(0, reference["tokens"]))
            keys = [old["key"], new["key"], new_id()]
            answer = await worker.calls.release(keys, instance=worker.server.instance)
            assert isinstance(answer, tuple)
            assert answer[:2] == (2, 1)
            assert (await worker.client.describe()).capabilities == CAPABILITIES
            [third] = references(await _run_with(worker, first))
            assert (await worker.calls.release(owner="you"))[:2] == (1, 0)  # type: ignore[index]
            assert (await worker.calls.fetch(third)).failure is not None
    finally:
        set_episode_hook(None)


async def _run_with(worker: ArrayWorker, hook: RememberingKeeper) -> Outcome:
    set_episode_hook(hook)
    return await worker.client.run(SMALL, owner="you")


async def test_a_hook_of_the_users_own_around_the_keeper_is_served() -> None:
    class Wrapping:
        def __init__(self) -> None:
            self._keeper = ArrayKeeper()
            self.array_store = self._keeper.array_store

        def keep(self, episode: Episode, sampling: SamplingParams) -> None:
            self._keeper.keep(episode, sampling)

        def discard(self, episode: Episode) -> None:
            self._keeper.discard(episode)

    async with array_worker(Wrapping()) as worker:
        [reference] = references(await worker.client.run(SMALL))
        assert (await worker.calls.fetch(reference)).failure is None


async def test_a_worker_whose_hook_keeps_no_arrays_says_how_it_would() -> None:
    async with serving_worker() as subject, channel_to(subject.server) as channel:
        calls = ArrayCalls(channel)
        reference = {"instance": subject.server.instance, "key": ELSEWHERE}
        failure = (await calls.fetch(reference)).failure
        assert failure is not None
        assert failure.kind == ("UNIMPLEMENTED", "NOT_OFFERED")
        assert failure.metadata["capability"] == "training-arrays"
        assert "--hook array-keeper" in failure.message
        lost = (await calls.fetch({**reference, "instance": ELSEWHERE})).failure
        assert lost is not None
        assert lost.reason == "ARRAYS_LOST", "whatever this one keeps"
        assert await calls.release(owner="me") == (0, 0, 0), "nothing is there, which is no error"
        assert (await subject.client.describe()).capabilities == ["sessions", "session-runs"]


async def test_a_store_belongs_to_one_worker_and_another_one_says_so() -> None:
    keeper = ArrayKeeper()
    async with array_worker(keeper) as first:
        [reference] = references(await first.client.run(SMALL))
        other = WorkerServer(WorkerSettings(environments=("synthetic",)), hook=keeper)
        with pytest.raises(HookLoadError, match=f"belong to worker {first.server.instance[:8]}"):
            await other.start()
        assert (await first.calls.fetch(reference)).failure is None


async def test_a_store_of_another_worker_that_is_set_later_is_not_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper = ArrayKeeper()
    async with array_worker(keeper) as first, array_worker(None) as second:
        [reference] = references(await first.client.run(SMALL))
        set_episode_hook(keeper)
        try:
            failure = (await second.calls.fetch({**reference, "instance": second.server.instance})).failure
            assert failure is not None
            assert failure.reason == "NOT_OFFERED"
            outcome = await second.client.run(SMALL)
            assert (outcome.code, outcome.reason) == ("INTERNAL", "HOOK_FAILED")
            assert first.server.instance[:8] in outcome.message
        finally:
            set_episode_hook(None)
        assert (await first.calls.fetch(reference)).failure is None
    said = [record for record in caplog.records if "arrays are not served" in record.message]
    assert len(said) == 1, "once"


async def test_reflection_lists_the_service() -> None:
    async with serving_worker() as subject, channel_to(subject.server) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(timeout=10)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
        names = {service.name for service in answer.list_services_response.service}
        assert "envtrio.v1.TrainingArrayService" in names
        assert await call.read() is grpc.aio.EOF


def channel_to(server: WorkerServer) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(server.address, options=OPTIONS)

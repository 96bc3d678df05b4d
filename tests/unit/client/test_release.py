"""`env-client release`: whom it asks, and what it says of what was freed."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envtrio.v1 import pool_service_pb2 as pool_pb
from envtrio.v1 import training_array_service_pb2 as pb
from envtrio.v1 import training_array_service_pb2_grpc

from env_client import release as release_module
from env_client.cli import main
from env_client.reference_lines import find_references
from env_client.release import holders_of_references
from tests.helpers.scripted_end import End
from tests.helpers.scripted_pool import ScriptedPool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.helpers.scripted_service import ScriptedService

NOBODY = "127.0.0.1:1"
INSTANCE = "a" * 32


class Keeper(training_array_service_pb2_grpc.TrainingArrayServiceServicer):
    """A worker that answers every Release so; a context manager."""

    def __init__(self, answer: pb.ReleaseResponse | End) -> None:
        self.answer = answer
        self.requests: list[pb.ReleaseRequest] = []
        self._threads = ThreadPoolExecutor(2)
        self._server = grpc.server(self._threads, options=(("grpc.so_reuseport", 0),))
        training_array_service_pb2_grpc.add_TrainingArrayServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Keeper:
        self._server.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.stop(0).wait(20)
        self._threads.shutdown()

    def Release(self, request: pb.ReleaseRequest, context: grpc.ServicerContext) -> pb.ReleaseResponse:
        """Handler of Release."""
        self.requests.append(request)
        if isinstance(self.answer, End):
            self.answer.abort(context)
            raise AssertionError("abort raises")
        return self.answer


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper(pb.ReleaseResponse(released=2, released_bytes=3 * 2**20)) as serving:
        yield serving


def a_pool(*workers: tuple[str, str, int]) -> pool_pb.WatchPoolResponse:
    """State, address and held bytes of each."""
    view = pool_pb.WatchPoolResponse()
    for number, (state, address, held) in enumerate(workers):
        view.workers.add(
            instance=f"{number}" * 32,
            state=pool_pb.WorkerState.Value(f"WORKER_STATE_{state}"),
            address=address,
            held_array_bytes=held,
        )
    return view


def reference(address: str, key: str = "1" * 32, instance: str = INSTANCE) -> dict[str, Any]:
    return {"instance": instance, "address": address, "key": key, "tokens": 3, "arrays": {}}


def a_line(*references: Any) -> str:
    traces = [{"info": {"training_arrays": list(references), "other": 1}}, {"info": {}}]
    return json.dumps({"index": 0, "request_id": "12345678", "traces": traces})


def test_of_an_owner_it_asks_every_worker_of_the_pool(
    keeper: Keeper, capsys: pytest.CaptureFixture[str]
) -> None:
    with Keeper(pb.ReleaseResponse(released=1, released_bytes=10)) as other:
        view = a_pool(
            ("READY", keeper.address, 5),
            ("DRAINING", other.address, 0),
            ("STARTING", "", 0),
            ("LOST", keeper.address, 7),  # the instance before the one that is READY
        )
        with ScriptedPool((view,)) as pool:
            assert main(["release", "--broker", pool.address, "--owner", "trainer-7"]) == 0
        assert [request.owner for request in other.requests + keeper.requests] == ["trainer-7"] * 2
        assert keeper.requests[0].protocol_generation == 1
    assert capsys.readouterr().out.splitlines() == [
        f"worker 00000000 at {keeper.address}: released 2 references, 3.0 MiB",
        f"worker 11111111 at {other.address}: released 1 reference, 10 B",
        "total of 2 workers, 0 of which failed: released 3 references, 3.0 MiB",
    ]


def test_a_lone_worker_is_asked_itself(keeper: Keeper, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "--broker", keeper.address, "--owner", "me"]) == 0
    assert f"worker at {keeper.address}: released 2 references" in capsys.readouterr().out


def test_a_worker_that_serves_no_arrays_counts_as_nothing(
    keeper: Keeper, service: ScriptedService, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper.answer = End(grpc.StatusCode.UNIMPLEMENTED, "NOT_OFFERED")
    assert main(["release", "--broker", keeper.address, "--owner", "me"]) == 0
    assert main(["release", "--broker", service.address, "--owner", "me"]) == 0
    said = capsys.readouterr().out
    assert f"worker at {keeper.address}: serves no arrays" in said
    assert f"worker at {service.address}: serves no arrays" in said


def test_a_worker_that_holds_arrays_and_cannot_be_asked_is_named(
    keeper: Keeper, capsys: pytest.CaptureFixture[str]
) -> None:
    view = a_pool(("LOST", NOBODY, 5 * 2**20), ("READY", keeper.address, 0))
    with ScriptedPool((view,)) as pool:
        assert main(["release", "--broker", pool.address, "--owner", "me"]) == 1
    said = capsys.readouterr()
    worker = f"worker 00000000 at {NOBODY}"
    assert f"{worker}: could not be asked, and held 5.0 MiB by its last heartbeat: UNAVAILABLE" in said.err
    assert "if its process is gone, so are its arrays" in said.err
    assert f"{keeper.address}: released 2 references" in said.out, "the others are asked all the same"
    assert "total of 2 workers, 1 of which failed" in said.out


def test_a_worker_that_held_nothing_need_not_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedPool((a_pool(("LOST", NOBODY, 0)),)) as pool:
        assert main(["release", "--broker", pool.address, "--owner", "me"]) == 0
    assert "could not be asked, and held nothing by its last heartbeat" in capsys.readouterr().out


def test_a_refusal_is_a_failure(keeper: Keeper, capsys: pytest.CaptureFixture[str]) -> None:
    keeper.answer = End(grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_GENERATION", "upgrade it")
    assert main(["release", "--broker", keeper.address, "--owner", "me"]) == 1
    assert "PROTOCOL_GENERATION: upgrade it" in capsys.readouterr().err


def test_a_broker_that_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", "--broker", NOBODY, "--owner", "me"]) == 1
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_of_a_file_every_reference_is_released_once(
    keeper: Keeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [digit * 32 for digit in "1234"]
    lines = [
        a_line(reference(keeper.address, keys[0]), reference(keeper.address, keys[1])),
        '{"index": 1, "error": "RunCancelledError"}',
        "",
        a_line(reference(keeper.address, keys[0]), reference(keeper.address, keys[2], "b" * 32)),
        a_line(),
    ]
    episodes = tmp_path / "out.jsonl"
    episodes.write_text("\n".join(lines))
    keeper.answer = pb.ReleaseResponse(released=1, not_found=1, released_bytes=8)
    assert main(["release", "--episodes", str(episodes)]) == 0
    asked = {request.references.instance: list(request.references.keys) for request in keeper.requests}
    assert asked == {INSTANCE: keys[:2], "b" * 32: [keys[2]]}
    out = capsys.readouterr().out
    assert f"worker aaaaaaaa at {keeper.address}: released 1 reference, 8 B; 1 were not there" in out
    assert "total of 2 workers, 0 of which failed: released 2 references, 16 B; 2 were not there" in out


def test_it_dials_hosts_only() -> None:
    """To gRPC "unix:1" alone is a socket file, and a worker may have written it."""
    found = find_references([a_line(reference("unix:1")).encode()])
    assert [holder.target for holder in holders_of_references(found)] == ["dns:///unix:1"]
    with ScriptedPool((a_pool(("READY", "unix:1", 0)),)) as pool:
        holders = release_module.holders_of_owner(pool.address, "me")
    assert [holder.target for holder in holders] == ["dns:///unix:1"]


def test_bad_lines_are_named_and_the_others_released(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = reference(keeper.address)
    bad = [
        b"\xff",
        b"[1]",
        b'{"traces": 1}',
        b'{"traces": [{}]}',
        a_line(7).encode(),
        a_line(good, {**good, "key": "short"}).encode(),
        a_line({**good, "address": "nowhere"}).encode(),
    ]
    monkeypatch.setattr("env_client.reference_lines.FAULTS_KEPT", len(bad))
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"\n".join([*bad, a_line(good).encode()]))))
    assert main(["release", "--episodes", "-"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[2].split(":")[0] for line in said] == [
        f" -, line {number}" for number in range(1, 8)
    ]
    assert "found a JSON list, expected an object" in said[1]
    assert "a reference: found 7, expected a JSON object" in said[4]
    assert "found 'nowhere', expected HOST:PORT" in said[6]
    assert list(keeper.requests[0].references.keys) == ["1" * 32], "a damaged line counts as a whole"


def test_a_file_of_tasks_is_no_file_of_outcomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"dataset": "chain_sum", "index": 3}\n{}\n')
    assert main(["release", "--episodes", str(tasks)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert f"{tasks}, line 1: found an object of ['dataset', 'index'], expected an outcome that" in first
    assert "which has 'traces' or an 'error'; its arrays are not released" in first
    assert "line 2: found an object of []" in second


def test_of_many_lines_that_are_none_the_first_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("{}\n" * 1_000)
    assert main(["release", "--episodes", str(tasks)]) == 1
    *shown, last = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in shown] == [f" {tasks}, line {number}" for number in range(1, 4)]
    assert last == f"env-client: {tasks}, 997 lines more, likewise"


def test_many_keys_go_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_module, "_KEYS_A_CALL", 2)
    line = a_line(*(reference("h:1", f"{number:032x}") for number in range(5)))
    (holder,) = holders_of_references(find_references([line.encode()]))
    assert [len(request.references.keys) for request in holder.requests] == [2, 2, 1]


def test_a_file_without_references_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.jsonl").write_text("")
    assert main(["release", "--episodes", str(tmp_path / "out.jsonl")]) == 0
    assert "total of 0 workers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--broker", "h:1"], "needs --owner NAME or --episodes FILE"),
        (["--owner", "me"], "--broker is not set"),
        (["--owner", "me", "--episodes", "x", "--broker", "h:1"], "give one of them"),
        (["--episodes", "no/such/file"], "--episodes no/such/file"),
    ],
)
def test_usage(
    arguments: list[str], found: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENV_CLIENT_BROKER", raising=False)
    assert main(["release", *arguments]) == 2
    assert found in capsys.readouterr().err

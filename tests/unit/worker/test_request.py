"""What a RunRequest is refused for: field, value, limit and next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from envtrio.v1 import env_service_pb2 as pb
from google.rpc import error_details_pb2

from env_worker.config import WorkerSettings
from env_worker.envs.registry import EnvironmentRegistry
from env_worker.model.engines import Engines
from env_worker.request import read_request
from env_worker.status import CODES, Refusal

if TYPE_CHECKING:
    from env_worker.run import RunSpec

ID = "0123456789abcdef" * 2
HERE = "tests.unit.worker.test_request"


class Picky:
    name = "picky"

    async def run(self, context: object) -> None: ...


def read(*specs: str, **fields: Any) -> RunSpec:
    fields = {"request_id": ID, "protocol_generation": 1, "task_json": "{}", **fields}
    registry = EnvironmentRegistry(specs or ("synthetic",))
    return read_request(pb.RunRequest(**fields), registry, Engines(WorkerSettings()), 5.0)


def refused(*specs: str, **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        read(*specs, **fields)
    return refusal.value


def test_a_good_request_is_read_whole() -> None:
    spec = read(
        task_json='{"turns": 3}',
        session_id="f" * 32,
        owner="me",
        group_id="g",
        priority=-2,
        sampling=pb.SamplingParams(temperature=0.5, max_tokens=7),
        model=pb.ModelEndpoint(model="simulated", headers={"x-run": "7"}),
    )
    assert (spec.environment_name, spec.task, spec.task_json) == ("synthetic", {"turns": 3}, '{"turns": 3}')
    assert (spec.session_id, spec.owner, spec.group_id, spec.priority) == ("f" * 32, "me", "g", -2)
    assert (spec.sampling.temperature, spec.sampling.max_tokens, spec.deadline) == (0.5, 7, 5.0)


ENDPOINT = "ENDPOINT_NOT_ALLOWED"
INVALID = "INVALID_REQUEST"


@pytest.mark.parametrize(
    ("fields", "reason", "field", "word"),
    [
        ({"protocol_generation": 0}, "PROTOCOL_GENERATION", None, "speaks 1"),
        ({"protocol_generation": 2}, "PROTOCOL_GENERATION", None, "is 2"),
        ({"request_id": ""}, "INVALID_REQUEST_ID", "request_id", "32"),
        ({"request_id": ID.upper()}, "INVALID_REQUEST_ID", "request_id", "lower-case"),
        ({"request_id": ID + "\n"}, "INVALID_REQUEST_ID", "request_id", "33"),
        ({"owner": "ü" * 129}, INVALID, "owner", "258 bytes, the limit is 256"),
        ({"group_id": "g" * 257}, INVALID, "group_id", "257"),
        ({"session_id": "s"}, INVALID, "session_id", "32"),
        ({"environment": "other"}, "ENVIRONMENT_NOT_FOUND", "environment", "synthetic"),
        ({"task_json": ""}, "INVALID_TASK", "task_json", "JSON"),
        ({"task_json": "[1]"}, "INVALID_TASK", "task_json", "object"),
        ({"task_json": '{"turns": NaN}'}, "INVALID_TASK", "task_json", "finite"),
        ({"sampling": pb.SamplingParams(temperature=-1)}, INVALID, "sampling.temperature", "0 or more"),
        ({"sampling": pb.SamplingParams(top_p=float("nan"))}, INVALID, "sampling.top_p", "nan"),
        ({"model": pb.ModelEndpoint(url="http://x/v1")}, ENDPOINT, "model.url", "http://x/v1"),
        ({"model": pb.ModelEndpoint(model="gpt")}, ENDPOINT, "model.model", "gpt"),
        ({"model": pb.ModelEndpoint(dialect="vllm-chat")}, ENDPOINT, "model.dialect", "vllm-chat"),
        ({"model": pb.ModelEndpoint(api_key_variable="KEY")}, ENDPOINT, "model.api_key_variable", "KEY"),
        ({"model": pb.ModelEndpoint(headers={"cookie": "x"})}, ENDPOINT, "model.headers['cookie']", "never"),
        (
            {"model": pb.ModelEndpoint(headers={"proxy-x": "x"})},
            ENDPOINT,
            "model.headers['proxy-x']",
            "never",
        ),
        (
            {"model": pb.ModelEndpoint(headers={"Upper": "x"})},
            INVALID,
            "model.headers['Upper']",
            "lower-case",
        ),
        (
            {"model": pb.ModelEndpoint(headers={"authorization": "x"})},
            ENDPOINT,
            "model.headers['authorization']",
            "the worker's variable that holds it: model.api_key_variable (key_variable or --key-variable in",
        ),
        ({"model": pb.ModelEndpoint(headers={"a": "b\r\nc"})}, INVALID, "model.headers['a']", "control"),
        *(
            ({"model": pb.ModelEndpoint(headers={name: "x"})}, ENDPOINT, f"model.headers['{name}']", "never")
            for name in (
                *("authorization", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "host", "te"),
                *("content-length", "transfer-encoding", "connection", "upgrade", "expect", "trailer"),
                "keep-alive",
            )
        ),
        *(
            (
                {"model": pb.ModelEndpoint(headers={"a": value})},
                INVALID,
                "model.headers['a']",
                "no header carries",
            )
            for value in ("Zoë", " b", "b ", "\tb")
        ),
        ({"model": pb.ModelEndpoint(headers={"a": "b" * 4097})}, INVALID, "model.headers['a']", "4096"),
        (
            {"model": pb.ModelEndpoint(headers={f"x-{number}": "" for number in range(65)})},
            INVALID,
            "model.headers",
            "64",
        ),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], reason: str, field: str | None, word: str) -> None:
    refusal = refused(**fields)
    assert refusal.reason_name == reason
    assert refusal.metadata.get("field") == field
    assert word in refusal.message
    assert ID not in refusal.message


def test_a_task_that_leaves_no_room_for_the_reply_is_refused_at_once() -> None:
    refusal = refused(task_json='{"a":"' + "x" * (63 * 2**20) + '"}')
    assert (refusal.reason_name, refusal.metadata["limit"]) == ("MESSAGE_TOO_LARGE", str(63 * 2**20))


def test_an_empty_environment_is_the_only_one_there_is() -> None:
    assert read(f"{HERE}:Picky").environment_name == "picky"
    refusal = refused("synthetic", f"{HERE}:Picky")
    assert (refusal.reason_name, refusal.metadata["field"]) == (INVALID, "environment")
    assert "synthetic, picky" in refusal.message


@pytest.mark.parametrize("reason", CODES)
def test_every_reason_becomes_a_status_with_its_details(reason: Any) -> None:
    refusal = Refusal(reason, "m" * 5000, retry_seconds=1.5, limit=7, value="v" * 5000)
    status = refusal.status()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.code == CODES[reason].value[0]
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.domain, info.reason, info.metadata["limit"]) == ("envtrio", refusal.reason_name, "7")
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5
    ((key, data),) = refusal.trailing_metadata()
    assert key == "grpc-status-details-bin"
    assert len(data) + len(refusal.message) < 4000, "trailers have to stay small"

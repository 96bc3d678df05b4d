"""What a RunRequest asks for, checked field by field before anything is begun."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar

from envtrio.v1 import errors_pb2
from google.protobuf.message import DecodeError, Message

from env_worker import wire
from env_worker.delta.limits import MAX_MESSAGE_BYTES, largest_field_of
from env_worker.domain import InvalidTaskError
from env_worker.envs.registry import EnvironmentNotFoundError
from env_worker.model.engines import EndpointNotAllowedError
from env_worker.run import RunSpec
from env_worker.status import Refusal
from env_worker.strict_json import InvalidFieldError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envtrio.v1.env_service_pb2 import ModelEndpoint, RunRequest

    from env_worker.domain import JsonObject
    from env_worker.envs.base import Environment
    from env_worker.envs.registry import EnvironmentRegistry
    from env_worker.model.base import ModelClient
    from env_worker.model.engines import Engines

_M = TypeVar("_M", bound=Message)

PROTOCOL_GENERATION: Final = 1
BIG_REQUEST_BYTES: Final = 256 * 1024
"""Larger requests are read in a thread."""
MAX_NAME_BYTES: Final = 256
"""Most bytes of an owner, a group, a cancel's cause, an environment's or a model's name."""
MAX_TASK_BYTES: Final = MAX_MESSAGE_BYTES - 1024 * 1024
"""The reply's head carries the task back, within one message."""
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 4096

_ID: Final = re.compile(r"[0-9a-f]{32}")
_HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADERS: Final = frozenset(
    {"authorization", "cookie", "api-key", "x-api-key", "x-goog-api-key", "x-auth-token"}
)
_STEERING_HEADERS: Final = frozenset(
    {"host", "connection", "content-length", "expect", "keep-alive"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
"""Those between the worker's HTTP package and the engine alone."""


def decoded(kind: type[_M], data: bytes) -> _M:
    """The message in `data`. Refusal if there is none, where gRPC itself would say UNKNOWN."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refusal(
            errors_pb2.ERROR_REASON_INVALID_REQUEST,
            f"the request of {len(data)} bytes is no {kind.DESCRIPTOR.name} ({error}); check that the client "
            "was made from the same protos",
            field=kind.DESCRIPTOR.name,
        ) from error


def check_generation(theirs: int) -> None:
    """Refusal if the peer speaks another protocol generation."""
    if theirs != PROTOCOL_GENERATION:
        raise Refusal(
            errors_pb2.ERROR_REASON_PROTOCOL_GENERATION,
            f"protocol_generation is {theirs}, this worker speaks {PROTOCOL_GENERATION}; upgrade the "
            "older of the two",
            ours=PROTOCOL_GENERATION,
            theirs=theirs,
        )


def check_request_id(request_id: str) -> None:
    """Refusal unless it is 32 lower-case hexadecimal digits."""
    if _ID.fullmatch(request_id) is None:
        raise Refusal(
            errors_pb2.ERROR_REASON_INVALID_REQUEST_ID,
            f"request_id starts with {request_id[:8]!r} and has {len(request_id)} characters, expected "
            "32 lower-case "
            "hexadecimal digits; use a random 128-bit id, such as uuid.uuid4().hex",
            field="request_id",
        )


def check_digits(field: str, value: str) -> None:
    """Refusal unless it is 32 lower-case hexadecimal digits, as ids and keys of references are."""
    if _ID.fullmatch(value) is None:
        raise _invalid(
            field,
            f"starts with {value[:8]!r} and has {len(value)} characters, expected 32 lower-case hexadecimal "
            "digits; take it from the reference as it is",
        )


def check_name(field: str, value: str) -> None:
    """Refusal if `value` has more bytes than a name may have."""
    if (size := len(value.encode())) > MAX_NAME_BYTES:
        raise _invalid(
            field, f"has {size} bytes, the limit is {MAX_NAME_BYTES}; shorten it", size, MAX_NAME_BYTES
        )


def read_request(
    request: RunRequest, environments: EnvironmentRegistry, engines: Engines, deadline: float | None
) -> RunSpec:
    """The run that `request` asks for. Refusal naming field, value, limit and next step if it cannot be
    run."""
    check_generation(request.protocol_generation)
    if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
        raise _too_large(largest_field_of(request), "the request", size, MAX_MESSAGE_BYTES)
    check_request_id(request.request_id)
    for field in ("owner", "group_id", "environment"):
        check_name(field, getattr(request, field))
    if request.session_id and _ID.fullmatch(request.session_id) is None:
        raise _invalid(
            "session_id",
            f"has {len(request.session_id)} characters, expected none or 32 lower-case hexadecimal digits",
        )
    model = _model(request.model, engines)
    name, environment = _environment(request.environment, environments)
    try:
        sampling = wire.sampling_params(request.sampling)
    except InvalidFieldError as error:
        raise Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, str(error), field=error.field) from error
    return RunSpec(
        request_id=request.request_id,
        environment_name=name,
        environment=environment,
        task=_task(request.task_json),
        task_json=request.task_json,
        sampling=sampling,
        model=model,
        session_id=request.session_id,
        owner=request.owner,
        group_id=request.group_id,
        priority=request.priority,
        deadline=deadline,
    )


def _environment(name: str, environments: EnvironmentRegistry) -> tuple[str, Environment]:
    if not name:
        if len(environments.names) != 1:
            raise _invalid(
                "environment",
                f"is empty and this worker serves {', '.join(environments.names) or 'none'}; name one",
            )
        name = environments.names[0]
    try:
        return name, environments.get(name)
    except EnvironmentNotFoundError as error:
        raise Refusal(
            errors_pb2.ERROR_REASON_ENVIRONMENT_NOT_FOUND, str(error), field="environment", value=name
        ) from error


def _task(task_json: str) -> JsonObject:
    if (size := len(task_json.encode())) > MAX_TASK_BYTES:
        raise _too_large("task_json", "task_json", size, MAX_TASK_BYTES)
    try:
        return wire.parse_task(task_json)
    except InvalidTaskError as error:
        raise Refusal(errors_pb2.ERROR_REASON_INVALID_TASK, str(error), field="task_json") from error


def _model(asked: ModelEndpoint, engines: Engines) -> ModelClient:
    check_name("model.model", asked.model)
    _check_headers(asked.headers)
    try:
        return engines.model_for(
            url=asked.url,
            model=asked.model,
            dialect=asked.dialect,
            headers=asked.headers,
            key_variable=asked.api_key_variable,
        )
    except EndpointNotAllowedError as error:
        raise Refusal(errors_pb2.ERROR_REASON_ENDPOINT_NOT_ALLOWED, str(error), field=error.field) from error


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > MAX_HEADERS:
        raise _invalid(
            "model.headers",
            f"has {len(headers)} entries, the limit is {MAX_HEADERS}",
            len(headers),
            MAX_HEADERS,
        )
    for name, value in headers.items():
        field = f"model.headers[{name[:80]!r}]"
        if _HEADER_NAME.fullmatch(name) is None:
            raise _invalid(field, "is no lower-case HTTP header name; spell it in lower case, without spaces")
        if name in _SECRET_HEADERS | _STEERING_HEADERS or name.startswith("proxy-"):
            raise Refusal(
                errors_pb2.ERROR_REASON_ENDPOINT_NOT_ALLOWED,
                f"{field}: headers that carry secrets or steer the connection never cross; leave it out, and "
                "for a key name the worker's variable that holds it: model.api_key_variable (key_variable or "
                "--key-variable in env_client)",
                field=field,
            )
        if (size := len(value.encode())) > MAX_HEADER_BYTES:
            raise _invalid(
                field, f"has {size} bytes, the limit is {MAX_HEADER_BYTES}", size, MAX_HEADER_BYTES
            )
        if any((ord(character) < 32 and character != "\t") or ord(character) == 127 for character in value):
            raise _invalid(field, "holds a control character; leave it out")
        if not value.isascii() or value != value.strip():
            raise _invalid(
                field,
                "holds characters beyond ASCII, or blanks at an end, which no header carries; leave them out",
            )


def _too_large(field: str, what: str, size: int, limit: int) -> Refusal:
    return Refusal(
        errors_pb2.ERROR_REASON_MESSAGE_TOO_LARGE,
        f"{what} has {size} bytes, the limit is {limit}; send a reference to the data instead",
        field=field,
        value=size,
        limit=limit,
    )


def _invalid(field: str, problem: str, value: int | None = None, limit: int | None = None) -> Refusal:
    if limit is None:
        return Refusal(errors_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", field=field)
    return Refusal(
        errors_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", field=field, value=value, limit=limit
    )

"""Making a `RunRequest` out of what a caller gives, and refusing early what cannot be sent."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from envtrio.v1.env_service_pb2 import CancelOutcome, ModelEndpoint, RunRequest, SamplingParams
from google.protobuf.descriptor import FieldDescriptor

from env_client.errors import InvalidRequestError, InvalidTaskError, MessageTooLargeError, shown_id

PROTOCOL_GENERATION: Final = 1
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of one message's payload on any hop."""

Task: TypeAlias = Mapping[str, Any]
Sampling: TypeAlias = Mapping[str, Any] | SamplingParams

_SESSION_ID_BYTES: Final = 34  # Of the field, which is set when the request leaves.
_FOREVER_SECONDS: Final = 1e9
"""Some thirty years: gRPC takes more for a time that has passed."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_REQUEST_ID: Final = re.compile(r"[0-9a-f]{32}")
_TOP_LOGPROBS: Final = ("logprobs", "top_logprobs", "top_logprobs_count")
"""What engines call `top_logprobs_count`, and that."""
_SAMPLING_FIELDS: Final = SamplingParams.DESCRIPTOR.fields_by_name
_EXPECTED: Final[Mapping[int, str]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_INT32: f"an integer from {-(2**31)} to {2**31 - 1}",
    FieldDescriptor.CPPTYPE_UINT32: f"an integer from 0 to {2**32 - 1}",
    FieldDescriptor.CPPTYPE_INT64: f"an integer from {-(2**63)} to {2**63 - 1}",
    FieldDescriptor.CPPTYPE_STRING: "a text, or a list of texts",  # stop
}
"""What a field of the sampling parameters takes, by its type."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a worker asks for the model's answers.

    Attributes:
        url: base URL, e.g. "http://engine:8000/v1"; must be on the worker's list of endpoints.
        dialect: the API it speaks, e.g. "vllm-chat"; empty: the worker's default.
        headers: extra HTTP headers by lower-case name. No secrets: they cross the wire.
        key_variable: NAME of the worker's environment variable that holds the API key; empty: no key.
    """

    url: str
    dialect: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    key_variable: str = ""


@dataclass(frozen=True, slots=True)
class RunDefaults:
    """What a client sends with each run that does not say otherwise. `None` leaves it to the server."""

    env: str | None = None
    model: str | None = None
    endpoint: str | Endpoint | None = None
    sampling: Sampling | None = None
    owner: str = ""
    timeout: float | None = None


def new_request_id() -> str:
    """A random 128-bit id as 32 lower-case hexadecimal digits."""
    return secrets.token_hex(16)


def checked_request_id(request_id: str) -> str:
    """The id itself.

    Raises:
        InvalidRequestError: it is not 32 lower-case hexadecimal digits.
    """
    if not isinstance(request_id, str) or not _REQUEST_ID.fullmatch(request_id):
        raise InvalidRequestError(
            f"request_id {shown_id(str(request_id))!r}... of {len(str(request_id))} characters: expected 32 "
            "lower-case hexadecimal digits; give a run's whole id, or for a new run a random one or none",
            reason="INVALID_REQUEST_ID",
            metadata={"field": "request_id"},
        )
    return request_id


def outcome_name(outcome: CancelOutcome.ValueType) -> str:
    """The name of a `CancelOutcome` without its prefix."""
    return CancelOutcome.Name(outcome).removeprefix("CANCEL_OUTCOME_")


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout itself, in seconds; None is none.

    Raises:
        InvalidRequestError: it is not a number of seconds, or less than 0.
    """
    try:
        if timeout is None or timeout >= _FOREVER_SECONDS:
            return None
        if timeout >= 0:
            return timeout
    except TypeError:
        pass
    raise InvalidRequestError(
        f"timeout {timeout!r}: expected 0 or more seconds; leave it out for none",
        metadata={"field": "timeout"},
    )


def build_request(
    task: Task,
    defaults: RunDefaults,
    *,
    env: str | None,
    model: str | None,
    endpoint: str | Endpoint | None,
    sampling: Sampling | None,
    request_id: str | None,
    group_id: str | None,
    owner: str | None,
) -> RunRequest:
    """The request of one run, all but its session_id. What is None comes from `defaults`.

    Raises:
        InvalidTaskError: the task is not a JSON object (NaN and Infinity are not JSON).
        InvalidRequestError: another argument is malformed; metadata "field" names it.
        MessageTooLargeError: the request is over 64 MiB; metadata "field" names its largest field.
    """
    identity = new_request_id() if request_id is None else checked_request_id(request_id)
    request = RunRequest(request_id=identity, protocol_generation=PROTOCOL_GENERATION)
    _set_text(request, "environment", _first(env, defaults.env), "env")
    _set_text(request, "group_id", group_id, "group_id")
    _set_text(request, "owner", _first(owner, defaults.owner), "owner")
    request.task_json = task_text(task)
    chosen_sampling = _first(sampling, defaults.sampling)
    if chosen_sampling is not None:
        request.sampling.CopyFrom(checked_sampling(chosen_sampling))
    chosen_model, chosen_endpoint = _first(model, defaults.model), _first(endpoint, defaults.endpoint)
    if chosen_model is not None or chosen_endpoint is not None:
        request.model.CopyFrom(_model_endpoint(chosen_model, chosen_endpoint))
    _check_size(request)
    return request


def task_text(task: Task) -> str:
    """The task as JSON text.

    Raises:
        InvalidTaskError: it is not a JSON object.
    """
    next_step = "a task is a JSON object: text keys, and values of JSON's own types, without NaN and Infinity"
    if not isinstance(task, Mapping):
        found = type(task).__name__
        raise InvalidTaskError(f"task: found a {found}; {next_step}", metadata={"field": "task_json"})
    try:
        for key in task:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is a {type(key).__name__}")
        text = json.dumps(dict(task), allow_nan=False, ensure_ascii=False)
        text.encode()  # Lone surrogates have no UTF-8.
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTaskError(f"task: {error}; {next_step}", metadata={"field": "task_json"}) from error
    return text


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _set_text(message: RunRequest | ModelEndpoint, name: str, value: object, field_name: str) -> None:
    if value is None:
        return
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise _malformed(field_name, value, "a text", error) from error


def checked_sampling(sampling: Sampling) -> SamplingParams:
    """The message for it.

    Raises:
        InvalidRequestError: it is malformed; metadata "field" names what is.
    """
    if isinstance(sampling, SamplingParams):
        return sampling
    if not isinstance(sampling, Mapping):
        raise _malformed("sampling", sampling, "a mapping or a SamplingParams")
    params = SamplingParams()
    for name, value in sampling.items():
        if value is None:
            continue  # Absent: the engine's default.
        label = f"sampling.{name}"
        if name in _TOP_LOGPROBS:
            if isinstance(value, bool):
                raise _malformed(label, value, "how many top log-probabilities each sampled token gets")
            name = "top_logprobs_count"
            if params.HasField("top_logprobs_count") and params.top_logprobs_count != value:
                raise InvalidRequestError(
                    f"{label} is {repr(value)[:80]}, but another name of the same, how many top "
                    f"log-probabilities each sampled token gets, says {params.top_logprobs_count}; leave out "
                    f"one of {', '.join(key for key in _TOP_LOGPROBS if sampling.get(key) is not None)}",
                    metadata={"field": label},
                )
        if name in ("extra_json", "extra"):
            raise _malformed(label, value, "further keys of the engine beside the others, as plain values")
        try:
            if name == "stop":
                params.stop.extend([value] if isinstance(value, str) else value)
            elif name not in _SAMPLING_FIELDS:
                params.extra_json[name] = json.dumps(value, allow_nan=False)
            elif isinstance(value, float) and not math.isfinite(value):
                raise _malformed(label, value, "a finite number")
            else:
                setattr(params, name, value)
        except (TypeError, ValueError, RecursionError) as error:
            raise _malformed(label, value, _expected(name), error) from error
    return params


def _expected(name: object) -> str:
    if not isinstance(name, str):
        return "a text as its name"
    if (known := _SAMPLING_FIELDS.get(name)) is None:
        return "what JSON can say"
    return _EXPECTED[known.cpp_type]


def _model_endpoint(model: str | None, endpoint: str | Endpoint | None) -> ModelEndpoint:
    asked = ModelEndpoint()
    _set_text(asked, "model", model, "model")
    if endpoint is None:
        return asked
    place = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    if not isinstance(place, Endpoint):
        raise _malformed("endpoint", endpoint, "a URL or an Endpoint")
    _set_text(asked, "url", place.url, "endpoint.url")
    _set_text(asked, "dialect", place.dialect, "endpoint.dialect")
    variable = place.key_variable
    if isinstance(variable, str) and variable and not _VARIABLE.fullmatch(variable):
        # Not repeated: it may be the key itself, which must not cross or be logged.
        raise InvalidRequestError(
            "endpoint.key_variable is no name of an environment variable (letters, digits, _); name the "
            "worker's variable that holds the key",
            metadata={"field": "endpoint.key_variable"},
        )
    _set_text(asked, "api_key_variable", place.key_variable, "endpoint.key_variable")
    try:
        asked.headers.update(place.headers)
    except (TypeError, ValueError) as error:
        # Values are not shown: a header may hold what is not for logs.
        names = sorted(map(str, place.headers))
        raise _malformed("endpoint.headers", names, "texts by name", error) from error
    return asked


def _check_size(request: RunRequest) -> None:
    size = request.ByteSize() + _SESSION_ID_BYTES
    if size <= MAX_MESSAGE_BYTES:
        return
    sizes = {
        "task_json": len(request.task_json.encode()),
        "sampling": request.sampling.ByteSize(),
        "model": request.model.ByteSize(),
    }
    largest = max(sizes, key=lambda name: sizes[name])
    raise MessageTooLargeError(
        f"request of {size} bytes is over the limit of {MAX_MESSAGE_BYTES}: make {largest} "
        f"({sizes[largest]} bytes) smaller, for example by naming data instead of carrying it",
        request_id=request.request_id,
        metadata={"field": largest, "value": str(sizes[largest]), "limit": str(MAX_MESSAGE_BYTES)},
    )


def _malformed(
    name: str, value: object, expected: str, error: Exception | None = None
) -> InvalidRequestError:
    because = f" ({error})" if error else ""
    shown = repr(value)[:80]
    return InvalidRequestError(
        f"{name}: found {shown}{because}, expected {expected}; mend the argument", metadata={"field": name}
    )

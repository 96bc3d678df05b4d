"""How a request may go wrong before there is an answer, or instead of one."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from aiohttp import web

from tests.engine.wanted import RefusedError, error_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.engine.profiles import Profile

Kind = Literal[
    "none",  # the request is answered
    "status",  # an error in the engine's own words
    "html",  # an error page of something between
    "redirect",
    "dropped",  # the connection is closed before any byte
    "broken",  # closed in mid-body
    "stalled",  # half a body, and nothing more until the gate opens
    "not-json",  # a body that ends in the middle, and says that it is complete
    "array",  # JSON, but no object
    "empty",  # no body
]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

_HALF: Final = (
    b'{"id": "chatcmpl-half", "object": "chat.completion", "choices": [{"index": 0, "message": {"ro'
)
_TYPES: Final = {429: "RateLimitError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request.

    First it waits `seconds`, and for the gate of this name, if any; then comes the fault, or with "none" the
    answer. Of `path` "" it is the next request whatever its path, else the next one whose path ends so.
    """

    kind: Kind = "none"
    seconds: float = 0.0
    gate: str = ""
    status: int = 500
    retry_after: str | None = None
    location: str = ""
    message: str = "scripted"
    path: str = ""


def slow(seconds: float, path: str = "") -> Fault:
    """Answered, but so much later."""
    return Fault(seconds=seconds, path=path)


def held(gate: str = "gate", path: str = "") -> Fault:
    """Answered when the test opens the gate."""
    return Fault(gate=gate, path=path)


def refused(status: int, retry_after: str | None = None, message: str = "scripted", path: str = "") -> Fault:
    """An error status with the engine's error object, and with Retry-After if it is given."""
    return Fault("status", status=status, retry_after=retry_after, message=message, path=path)


def redirected(location: str, status: int = 302) -> Fault:
    """Sent elsewhere."""
    return Fault("redirect", status=status, location=location)


@dataclass
class Faults:
    """Those that are to come, in their order, and the gates that hold requests up."""

    queue: deque[Fault] = field(default_factory=deque)
    _gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def add(self, faults: Iterable[Fault]) -> None:
        """Let them happen to the next requests, each to one."""
        self.queue.extend(faults)

    def take(self, path: str) -> Fault:
        """What happens to a request of this path."""
        for index, fault in enumerate(self.queue):
            if path.endswith(fault.path):
                del self.queue[index]
                return fault
        return Fault()

    def gate(self, name: str) -> asyncio.Event:
        """The gate of this name. Once it is set, whoever comes passes."""
        return self._gates.setdefault(name, asyncio.Event())

    async def wait(self, fault: Fault) -> None:
        """Wait as long as it says, before anything is sent."""
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault.gate and fault.kind != "stalled":
            await self.gate(fault.gate).wait()

    async def respond(self, fault: Fault, request: web.Request, profile: Profile) -> web.StreamResponse:
        """What the client gets instead of an answer."""
        match fault.kind:
            case "html":
                page = "<html><body><h1>Bad Gateway</h1></body></html>"
                return web.Response(status=fault.status, text=page, content_type="text/html")
            case "redirect":
                return web.Response(status=fault.status, headers={"Location": fault.location})
            case "not-json":
                return web.Response(body=_HALF, content_type="application/json")
            case "array":
                return web.json_response([{"choices": []}])
            case "empty":
                return web.Response(content_type="application/json")
            case "dropped":
                _abort(request)
                return web.Response()
            case "broken" | "stalled":
                return await self._half(fault, request)
            case _:
                error = RefusedError(fault.message, fault.status, _TYPES.get(fault.status, "BadRequestError"))
                headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
                return web.Response(
                    status=fault.status,
                    text=json.dumps(error_body(profile, error)),
                    content_type="application/json",
                    headers=headers,
                )

    async def _half(self, fault: Fault, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(2 * len(_HALF))})
        response.content_type = "application/json"
        await response.prepare(request)
        await response.write(_HALF)
        if fault.kind == "stalled":
            await self.gate(fault.gate).wait()
        _abort(request)
        return response


def from_json(value: Mapping[str, Any]) -> Fault:
    """The fault that a control request describes. TypeError for a key that is none, ValueError for a kind."""
    fault = Fault(**value)
    if fault.kind not in KINDS:
        raise ValueError(f"a fault's kind is one of {', '.join(KINDS)}, not {fault.kind!r}")
    return fault


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()

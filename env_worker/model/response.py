"""What an engine's HTTP response is good for: its JSON object, or the reason why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import zlib
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain.text import clean_text
from env_worker.model import json_pieces
from env_worker.model.errors import (
    EngineError,
    EngineRefusedError,
    EngineUnreachableError,
    MalformedAnswerError,
)
from env_worker.model.retry import TryFailedError, retry_after_seconds
from env_worker.model.unpacking import CODINGS, Unpacker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from env_worker.model.engine import Engine

LARGE_BYTES: Final = 256 * 1024
"""What is larger is decoded in a thread, while the loop serves others, and piece by piece."""
MAX_CONTAINERS: Final = 1 << 24
"""Lists and objects in an answer. Each takes about 100 bytes of memory, however few it has in the response,
and the garbage collector, which lets nothing else run meanwhile, some 25 ns. 200,000 tokens with 20
candidates each have 9 million, or 12 million where routing rows of 61 layers are lists."""

_COUNTED_BYTES: Final = 1 << 24
"""Counting holds the interpreter for 4 ms."""
_MAX_ERROR_BYTES: Final = 64 * 1024
_MAX_WORDS: Final = 550
"""Characters of an error that has the engine's own words: they may repeat the prompt."""
_NO_ACCESS: Final = frozenset({401, 403})
_NOT_FOUND: Final = 404
_RETRYABLE: Final = frozenset({408, 409, 429})
"""Beside all of 500 and above. As the openai package has it: a gateway gave up waiting, something was locked,
or there are too many requests."""


class UselessResponseError(Exception):
    """There is no answer in the response: `why` says that of the request, `kind` is the error to raise."""

    def __init__(
        self,
        why: str,
        kind: type[EngineError],
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(why)
        self.why: Final = why
        self.kind: Final = kind
        self.status: Final = status
        self.retryable: Final = retryable
        self.retry_after: Final = retry_after

    def as_failure(self, url: str, engine: Engine) -> TryFailedError:
        """The failure of a request to `url` of `engine`, whose key is not repeated, nor what headers held."""
        why = engine.redacted(self.why, _MAX_WORDS)
        if self.kind is EngineRefusedError and (hint := _hint(self.status, engine)):
            why = f"{why}; {hint}"
        error = self.kind(f"POST {url} {why}", status=self.status, retryable=self.retryable)
        return TryFailedError(error, self.retry_after)


async def read_body(response: Any, limit: int, room: Callable[[int], Awaitable[object]]) -> bytearray:
    """The body of `response`, an unread response of the HTTP package. UselessResponseError if it breaks off,
    or has more than `limit` bytes, of which no more are read.

    `room` is awaited, told how many bytes there will be, before more are read or unpacked than it was told.
    """
    too_large = UselessResponseError(
        f"was answered with more than {limit} bytes, the limit; ask for fewer arrays or tokens",
        MalformedAnswerError,
        status=response.status_code,
    )
    if (coding := _coding(response)) not in CODINGS:
        raise UselessResponseError(
            f"was answered with the content encoding {coding}, but asked for none; let the engine, or the "
            "proxy before it, send answers as they are",
            MalformedAnswerError,
            status=response.status_code,
        )
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large
    data = bytearray()
    unpacker = Unpacker(coding)
    try:
        async with contextlib.aclosing(response.aiter_raw()) as arrived:
            async for packed in arrived:
                for piece in unpacker.pieces(packed):
                    data += piece
                    if len(data) > limit:
                        raise too_large
                    await room(len(data) + unpacker.step)
                    if unpacker.step:
                        await asyncio.sleep(0)  # there may be a thousand more in what has arrived
        if not unpacker.whole:
            raise EOFError(f"no end of {coding}")
    except UselessResponseError:
        raise
    except zlib.error as error:
        raise UselessResponseError(
            f"was answered with the content encoding {coding}, which is broken behind {len(data)} unpacked "
            f"bytes: {error}; let the engine, or the proxy before it, send answers as they are",
            EngineUnreachableError,
            retryable=True,
        ) from None
    except Exception as error:  # whatever the HTTP package, sockets and TLS call it
        raise UselessResponseError(
            f"was answered by {len(data)} bytes that broke off: {type(error).__name__} {error}",
            EngineUnreachableError,
            retryable=True,
        ) from None
    return data


async def _beginning(response: Any) -> bytes:
    """The first bytes of a body, whole up to _MAX_ERROR_BYTES; less where it breaks off."""
    data = bytearray()
    unpacker = Unpacker(_coding(response))
    with contextlib.suppress(Exception):  # the status says enough
        async with contextlib.aclosing(response.aiter_raw()) as arrived:
            async for packed in arrived:
                for piece in unpacker.pieces(packed):
                    data += piece
                    if len(data) >= _MAX_ERROR_BYTES:
                        return bytes(data[:_MAX_ERROR_BYTES])
                    if unpacker.step:
                        await asyncio.sleep(0)
    return bytes(data)


def _coding(response: Any) -> str:
    coding: str = response.headers.get("content-encoding", "identity")
    return coding.strip().lower()


def decoded(data: bytearray) -> Mapping[str, Any]:
    """The JSON object in `data`, a LargeObject if that is large; UselessResponseError if it is none, or has
    more than MAX_CONTAINERS lists and objects. NaN and infinities are let in."""
    large = len(data) > LARGE_BYTES
    if large and (containers := _containers(data)) > MAX_CONTAINERS:
        raise UselessResponseError(
            f"was answered with {containers} lists and objects, the limit is {MAX_CONTAINERS}; ask for fewer "
            "candidates or tokens",
            MalformedAnswerError,
        )
    try:
        content = json_pieces.decode(data, _lean) if large else json.loads(data)
    except json_pieces.JsonLimitError as error:
        raise UselessResponseError(
            f"was answered with {len(data)} bytes of JSON beyond a limit: {error}; check the engine's URL",
            MalformedAnswerError,
        ) from None
    except (ValueError, RecursionError) as error:
        # A connection that breaks looks like this where no length was announced: worth another try.
        raise UselessResponseError(
            f"was answered with {len(data)} bytes that are not JSON: {error}",
            MalformedAnswerError,
            retryable=True,
        ) from None
    if not isinstance(content, dict):
        raise UselessResponseError(
            f"was answered with a JSON {type(content).__name__} instead of an object", MalformedAnswerError
        )
    return content


def _containers(data: bytearray) -> int:
    """How many there are at most: those in texts are counted, too."""
    starts = range(0, len(data), _COUNTED_BYTES)
    return sum(data.count(sign, at, at + _COUNTED_BYTES) for at in starts for sign in (b"[", b"{"))


def _lean(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A candidate token without the list of its text's bytes, which nobody reads; any other object whole.

    Without a list inside, such an object is none of the garbage collector's business: of 190 MB that took
    half of the time, in which nothing else ran.
    """
    if len(pairs) >= 3 and pairs[0][0] == "token" and pairs[2][0] == "bytes":
        del pairs[2]
    return dict(pairs)


async def refuse_all_but_success(response: Any) -> None:
    """A hook of the HTTP package for each response, before its body is read. UselessResponseError unless its
    status is 2xx, with the engine's words; the package would read an error's body whatever its size."""
    status: int = response.status_code
    if 200 <= status < 300:
        return
    said = b""
    if _coding(response) in CODINGS:
        said = await _beginning(response)
    words = _words(said)
    if 300 <= status < 400:
        where = response.headers.get("location", "")
        words = f"redirects are not followed, name the endpoint to which it leads: {where}"
    raise UselessResponseError(
        f"was answered with status {status}: {words}",
        EngineRefusedError,
        status=status,
        retryable=status in _RETRYABLE or status >= 500,
        retry_after=retry_after_seconds(response.headers.get("retry-after"), time.time()),
    )


def _hint(status: int | None, engine: Engine) -> str:
    """What engines do not say of a refusal, since they do not know it."""
    if status in _NO_ACCESS:
        if engine.key_variable:
            return f"the key that was sent is that of the worker's variable {engine.key_variable}"
        return (
            "no key was sent: name the worker's variable that holds one, by the run's key_variable or by "
            "--model-key-variable"
        )
    if status == _NOT_FOUND:
        return (
            f"it has no model {engine.model!r}, does not speak {engine.dialect}, or the base URL is wrong, "
            f"behind which its paths are put: {engine.url} (most end in /v1, once)"
        )
    return ""


def _words(said: bytes) -> str:
    """What an error's body says to people, on one line: engines wrap it in several ways."""
    text = said.decode(errors="replace")
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(text)
        inner = content.get("error", content) if isinstance(content, dict) else content
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str) and message:
            text = clean_text(message)
    return " ".join(text.split())

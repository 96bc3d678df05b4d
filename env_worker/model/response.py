"""What an engine's HTTP response is good for: its JSON object, or the reason why there is none."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain.text import clean_text
from env_worker.model.errors import (
    EngineError,
    EngineRefusedError,
    EngineUnreachableError,
    MalformedAnswerError,
)
from env_worker.model.retry import TryFailedError, retry_after_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LARGE_BYTES: Final = 256 * 1024
"""What is larger is decoded in a thread, while the loop serves others."""

_MAX_ERROR_BYTES: Final = 64 * 1024
_MAX_WORDS: Final = 500
"""Characters of the engine's own words in an error: they may repeat the prompt."""
_SECRET_LENGTH: Final = 8
"""A header's value that is shorter is no secret, and may be part of any word."""
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

    def as_failure(self, url: str, secrets: Iterable[str]) -> TryFailedError:
        """The failure of a request to `url`. What is in `secrets` is not repeated."""
        why = self.why
        for secret in secrets:
            if len(secret) >= _SECRET_LENGTH:
                why = why.replace(secret, "***")
        error = self.kind(f"POST {url} {why}", status=self.status, retryable=self.retryable)
        return TryFailedError(error, self.retry_after)


async def read_body(response: Any, limit: int) -> bytearray:
    """The body of `response`, an unread response of the HTTP package. UselessResponseError if it breaks off,
    or has more than `limit` bytes, of which no more are read."""
    too_large = UselessResponseError(
        f"was answered with more than {limit} bytes, the limit; ask for fewer arrays or tokens",
        MalformedAnswerError,
        status=response.status_code,
    )
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large
    data = bytearray()
    try:
        async with contextlib.aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) > limit:
                    break
    except Exception as error:  # whatever the HTTP package, sockets and TLS call it
        raise UselessResponseError(
            f"was answered by {len(data)} bytes that broke off: {type(error).__name__} {error}",
            EngineUnreachableError,
            retryable=True,
        ) from None
    if len(data) > limit:
        raise too_large
    return data


def decoded(data: bytearray) -> Mapping[str, Any]:
    """The JSON object in `data`; UselessResponseError if that is none. NaN and infinities are let in."""
    try:
        content = json.loads(data, object_pairs_hook=_lean if len(data) > LARGE_BYTES else None)
    except (ValueError, RecursionError) as error:
        # A connection that breaks looks like this where no length was announced: worth another try.
        raise UselessResponseError(
            f"was answered with {len(data)} bytes that are not JSON: {str(error)[:_MAX_WORDS]}",
            MalformedAnswerError,
            retryable=True,
        ) from None
    if not isinstance(content, dict):
        raise UselessResponseError(
            f"was answered with a JSON {type(content).__name__} instead of an object", MalformedAnswerError
        )
    return content


def _lean(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A candidate token without the list of its text's bytes, which nobody reads; any other object whole.

    Without a list inside, such an object is none of the garbage collector's business: of 190 MB that took
    half of the time, in which nothing else ran. And a decoder that calls Python lets other threads run.
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
    with contextlib.suppress(Exception):  # the status says enough
        async with contextlib.aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                said += piece
                if len(said) >= _MAX_ERROR_BYTES:
                    break
    words = _words(said)
    if 300 <= status < 400:
        where = response.headers.get("location", "")
        words = f"redirects are not followed, name the endpoint to which it leads: {where}"
    raise UselessResponseError(
        f"was answered with status {status}: {words[:_MAX_WORDS]}",
        EngineRefusedError,
        status=status,
        retryable=status in _RETRYABLE or status >= 500,
        retry_after=retry_after_seconds(response.headers.get("retry-after"), time.time()),
    )


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

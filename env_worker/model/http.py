"""HTTP to engines, over the `openai` package: the one module that needs the extra `[engines]`.

Importing it takes about a second: it is imported before the loops have work to do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final, cast

import openai

from env_worker.memory import usable_memory_bytes
from env_worker.model.body_budget import BodyBudget
from env_worker.model.errors import EngineError, EngineUnreachableError
from env_worker.model.json_writing import is_large, write
from env_worker.model.paths import request_url
from env_worker.model.response import (
    LARGE_BYTES,
    UselessResponseError,
    decoded,
    read_body,
    refuse_all_but_success,
)
from env_worker.model.retry import TryFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from env_worker.model.body_budget import Share
    from env_worker.model.engine import Engine

MAX_RESPONSE_BYTES: Final = 640 << 20
"""Routing rows make responses large: 200,000 tokens x 61 layers x 8 experts, as SGLang sends them (int32 in
base64), are 520 MB, and the 5 candidates of each token beside them 40 MB."""
MAX_BODIES_BYTES: Final = 1 << 30
"""What all large responses that are read or decoded at once may have, where that is no more than an eighth of
the memory: decoded, numbers take up to eight times their bytes."""
CONNECT_SECONDS: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 4.0
"""How long a connection may lie idle: less than the 5 s after which uvicorn (vLLM, SGLang) closes it, so that
no request is sent on a connection that is being closed."""

_THREADS: Final = 2
"""Decoding holds the interpreter: more threads would make nothing faster."""
_GROWTH: Final = 4
"""A body that is read asks for a fourth more than it has: seldom, and for little in vain."""
_UNREAD: Final = {"X-Stainless-Raw-Response": "stream"}
"""So the package is told, also by itself, to return a response before its body was read."""

_TLS: Final = ssl.create_default_context()
"""Made once: to read the certificates takes a loop's time."""

for _name in ("openai", "httpx", "httpx2", "httpcore", "httpcore2"):
    # At the level of the worker's own news they log each request, below it some versions log prompts.
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


class Connections:
    """The connections of one event loop to all engines. Used and closed in that loop only.

    All runs share one pool, without a limit: a run that waited for a connection would wait for another's
    answer, and how many runs there are is bounded by the worker's slots. Nothing else is shared, neither keys
    nor cookies. Redirects are not followed, since the key would go along. Proxies of the process's
    environment (HTTP_PROXY, ALL_PROXY) are not used: engines are neighbours, and prompts and keys are for
    them alone. SSL_CERT_FILE and SSL_CERT_DIR are, as everywhere in Python.

    Args:
        max_response_bytes: what a response may have, unpacked.
        max_bodies_bytes: what all large ones may have that are read or decoded at once, unless it is a single
            one. Others wait, and their engines with them.
    """

    def __init__(
        self, *, max_response_bytes: int = MAX_RESPONSE_BYTES, max_bodies_bytes: int | None = None
    ) -> None:
        self._max_response_bytes: Final = max_response_bytes
        if max_bodies_bytes is None:
            max_bodies_bytes = min(MAX_BODIES_BYTES, usable_memory_bytes() // 8)
        self._budget: Final = BodyBudget(max_bodies_bytes)
        self._threads: Final = ThreadPoolExecutor(_THREADS, thread_name_prefix="engine-json")
        limits = type(openai.DEFAULT_CONNECTION_LIMITS)(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS
        )
        self._client: Final = _Client(
            # Each request has its whole URL, and its key. Without these, OPENAI_BASE_URL and OPENAI_API_KEY
            # would be read.
            base_url="http://engine.invalid",
            api_key="none",
            max_retries=0,
            timeout=openai.Timeout(None, connect=CONNECT_SECONDS),
            http_client=openai.DefaultAsyncHttpxClient(
                limits=limits,
                follow_redirects=False,
                trust_env=False,
                verify=_TLS,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                event_hooks={"response": [refuse_all_but_success]},
            ),
        )

    async def post(
        self, engine: Engine, path: str, body: Mapping[str, Any], timeout_seconds: float
    ) -> Mapping[str, Any]:
        """Post `body` as JSON to `path` of `engine`, once, and return the JSON object that it answers; see
        `Post` for what `path` is.

        The key is read anew each time. Cancelling closes the request's connection, which is how vLLM and
        SGLang know that nobody waits any more. Of `timeout_seconds` the time is not taken in which the answer
        waits for others that are large, nor that in which it is decoded.

        Raises TryFailedError when the engine has not answered with a JSON object within `timeout_seconds`,
        EngineError when the key's variable has no key, TypeError or ValueError when `body` is not JSON.
        """
        url = request_url(engine.url, path)
        try:
            key = engine.api_key
        except LookupError as error:
            raise EngineError(str(error)) from None
        share = self._budget.share()
        try:
            try:
                async with asyncio.timeout(timeout_seconds) as clock:
                    data = await self._exchange(url, _headers(engine.headers, key), body, share, clock)
            except BaseException:
                share.give_back()
                raise
            if len(data) <= LARGE_BYTES:
                share.give_back()
                return decoded(data)
            return await self._decoded_aside(data, share)
        except TimeoutError:
            why = f"had no whole answer in {timeout_seconds:g} s; --model-timeout-seconds is what one try has"
        except (UselessResponseError, openai.APIConnectionError) as error:
            cause = error.__cause__ or error  # some versions of the package wrap what its hooks raise
            if isinstance(cause, UselessResponseError):
                raise cause.as_failure(url, engine) from None
            # What httpx says of a header of a length that is not the body's; httpx2 raises it as it is.
            if type(cause).__name__ == "LocalProtocolError" and "Content-Length" in str(cause):
                raise _unsendable(url, engine, cause) from None
            why = engine.redacted(f"found no answer: {type(cause).__name__} {cause}")
        except Exception as error:
            json.dumps(body, allow_nan=False, ensure_ascii=False).encode()  # raises what the caller did wrong
            raise _unsendable(url, engine, error) from None
        raise TryFailedError(EngineUnreachableError(f"POST {url} {why}", retryable=True))

    async def close(self) -> None:
        """Close what is idle and break off what is not."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._client.close()

    async def _decoded_aside(self, data: bytearray, share: Share) -> Mapping[str, Any]:
        """What `decoded` returns, in a thread. Cancelled, it lasts on there until it is done, and so does the
        body's share."""
        job = self._threads.submit(decoded, data)
        decoding = asyncio.wrap_future(job)
        decoding.add_done_callback(lambda _: share.give_back())
        try:
            return await asyncio.shield(decoding)
        except asyncio.CancelledError:
            job.cancel()  # if it has not begun
            raise

    async def _exchange(
        self,
        url: str,
        headers: Mapping[str, Any],
        body: Mapping[str, Any],
        share: Share,
        clock: asyncio.Timeout,
    ) -> bytearray:
        """Send, and return the whole body of the response. `clock` stands while it waits for its share."""

        async def room(size: int) -> None:
            if not share.has(size):
                with _standing(clock):
                    await share.grow(size + size // _GROWTH)

        answer = await self._client.post(
            url, body=body, cast_to=object, options={"headers": {**headers, **_UNREAD}}
        )
        response = cast("openai.AsyncAPIResponse[object]", answer).http_response
        try:
            return await read_body(response, self._max_response_bytes, room)
        finally:
            await response.aclose()


class _Client(openai.AsyncOpenAI):
    async def _prepare_options(self, options: Any) -> Any:
        """The package's hook for each request: it writes the body itself, on the loop, unless it is bytes."""
        options = await super()._prepare_options(options)
        if is_large(options.json_data):
            options.json_data = await asyncio.to_thread(write, options.json_data)
        return options

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        """Ours, and nothing that OPENAI_ORG_ID, OPENAI_PROJECT_ID or OPENAI_CUSTOM_HEADERS have put there."""
        return {
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # arrays hardly shrink, and unpacking would take the loop's time
            "Content-Type": "application/json",
            "User-Agent": "envtrio",
        }


_open: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connections]] = weakref.WeakKeyDictionary()
_open_lock: Final = threading.Lock()


def connections() -> Connections:
    """Those of the running loop, made when they are first asked for."""
    loop = asyncio.get_running_loop()
    with _open_lock:
        found = _open.get(loop)
        if found is None:
            found = _open[loop] = Connections()
        return found


async def close_clients() -> None:
    """Close the connections of the running loop, if it has any; asking again makes new ones.

    To be awaited before the loop ends, when nothing asks an engine any more.
    """
    with _open_lock:
        found = _open.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.close()


@contextmanager
def _standing(clock: asyncio.Timeout) -> Iterator[None]:
    """In here the time of `clock` does not go on."""
    loop, end = asyncio.get_running_loop(), clock.when()
    since = loop.time()
    clock.reschedule(None)
    try:
        yield
    finally:
        clock.reschedule(None if end is None else end + loop.time() - since)


def _headers(given: Mapping[str, str], key: str) -> dict[str, str | openai.Omit]:
    """Those of one request. A key is the endpoint's own, and goes before what a caller gave in its place."""
    headers: dict[str, str | openai.Omit] = {"Authorization": openai.Omit()}
    for name, value in given.items():
        headers["Authorization" if name.lower() == "authorization" else name] = value
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _unsendable(url: str, engine: Engine, error: BaseException) -> TryFailedError:
    why = engine.redacted(f"cannot be sent by the HTTP package: {type(error).__name__} {error}")
    return TryFailedError(EngineError(f"POST {url} {why}; check its URL and headers"))

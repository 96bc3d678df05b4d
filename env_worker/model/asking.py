"""One turn's requests to an engine, and the Calls that tell of their tries."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from env_worker.domain import Call, EpisodeError
from env_worker.domain.text import clean_text
from env_worker.model.errors import EngineAbortedError, EngineError
from env_worker.model.fields.messages import given_up
from env_worker.model.paths import request_url
from env_worker.model.retry import TryFailedError, persist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from env_worker.model.dialects.base import Answer, Dialect, EngineOptions, Question
    from env_worker.model.engine import Engine
    from env_worker.model.http import Connections
    from env_worker.model.retry import Backoff, FailedTry

_MAX_WORDS: Final = 2000
"""Characters of an error that has the engine's own words: they may repeat the prompt."""
_MANY_SPANS: Final = 1000
"""What more spans of weights tell of is gone over in a thread: each takes some 10 microseconds."""


class Asking:
    """Asks an engine one question. Each try that fails is handed to `record` as a Call, at once.

    An answer that the engine gave up is a try that failed: it is no answer, and nothing may be scored by it.

    A dialect may need several requests for a turn. The Call of the turn itself is that of the last try of the
    one that samples; if it was the first, with what led to it.
    """

    def __init__(
        self,
        engine: Engine,
        dialect: Dialect,
        connections: Connections,
        record: Callable[[Call], object],
        *,
        timeout_seconds: float,
        retries: int,
        backoff: Backoff,
    ) -> None:
        self._engine: Final = engine
        self._dialect: Final = dialect
        self._connections: Final = connections
        self._record: Final = record
        self._timeout_seconds: Final = timeout_seconds
        self._retries: Final = retries
        self._backoff: Final = backoff
        self._url = engine.url
        self._tries: Final[Counter[str]] = Counter()
        self._recorded: BaseException | None = None
        self._restart()

    async def answer(self, question: Question, options: EngineOptions) -> Answer:
        """The engine's answer, or EngineError; TypeError or ValueError where the question is not JSON."""
        try:
            answer = await self._dialect.ask(question, options, self._post)
        except EngineError as error:
            error.args = (self._engine.redacted(str(error), _MAX_WORDS),)
            raise error from None  # what led to it has the same words
        if len(answer.weight_versions) > _MANY_SPANS:
            await asyncio.to_thread(self._hide_key, answer)
        else:
            self._hide_key(answer)
        return answer

    def succeeded(self, node: int, answer: Answer) -> Call:
        """The Call that brought `answer`, which is node `node`."""
        return self._call(
            node=node,
            model=clean_text(answer.model) or self._engine.model,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=answer.cached_tokens,
            finish_reason=clean_text(answer.finish_reason),
            weight_versions=answer.weight_versions,
        )

    def failed(self, error: BaseException) -> None:
        """Record that the turn ended with `error`, unless that was recorded with a try."""
        if error is not self._recorded:
            self._record(self._call(error=EpisodeError.from_exception(error, "model")))
        self._recorded = None  # its traceback leads back here

    def _hide_key(self, answer: Answer) -> None:
        """In all of an answer that an episode tells, but the message."""
        engine = self._engine
        answer.holes = {field: engine.redacted(why) for field, why in answer.holes.items()}
        answer.model = engine.without_key(answer.model)
        answer.finish_reason = engine.without_key(answer.finish_reason)
        answer.weight_versions = tuple(
            replace(span, version=engine.without_key(span.version)) for span in answer.weight_versions
        )

    async def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Post`."""
        url = request_url(self._engine.url, path)
        if samples := path.lstrip("/") == self._dialect.endpoint.lstrip("/"):
            self._url = url

        async def once() -> Mapping[str, Any]:
            if samples and self._tries[url]:
                self._restart()  # what was before is told by the Call of the try that failed
            self._tries[url] += 1
            response = await self._connections.post(self._engine, path, body, self._timeout_seconds)
            if why := given_up(response):
                why = self._engine.redacted(f"POST {url} was answered with {why}", _MAX_WORDS)
                raise TryFailedError(EngineAbortedError(why, retryable=True))
            return response

        def report(failed: FailedTry) -> None:
            self._recorded = failed.error
            error = EpisodeError(type(failed.error).__qualname__, str(failed.error), failed.error.phase)
            self._record(
                self._call(
                    endpoint=url,
                    started_at=failed.started_at,
                    duration_seconds=failed.duration_seconds,
                    attempt=self._tries[url],
                    error=error,
                )
            )

        return await persist(once, report, retries=self._retries, backoff=self._backoff)

    def _restart(self) -> None:
        self._started_at, self._started = time.time(), time.perf_counter()

    def _call(self, **fields: Any) -> Call:
        latest = {
            "model": self._engine.model,
            "endpoint": self._url,
            "dialect": self._dialect.name,
            "started_at": self._started_at,
            "duration_seconds": time.perf_counter() - self._started,
            "attempt": max(self._tries[self._url], 1),
        }
        return Call(**{**latest, **fields})

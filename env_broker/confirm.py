"""Confirmations: from a client's session to the worker that replied, and its answer back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from env_broker.route import ConfirmOutcome, InvalidRequestIdError
from env_broker.routes import RETENTION_MARGIN_SECONDS
from env_broker.session_names import SessionNames
from env_broker.worker_session import WorkerSession

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from env_broker.clock import Clock
    from env_broker.link import WorkerLink
    from env_broker.routes import RouteTable


class Listener(Protocol):
    """Who has confirmed a run."""

    def answered(self, request_id: str, outcome: ConfirmOutcome) -> None:
        """What became of it."""

    def unanswered(self, request_id: str) -> None:
        """There will be no answer."""


@dataclass(slots=True)
class _Asked:
    sessions: set[WorkerSession]
    """Those that have yet to answer: that of the worker that replied, or all where no route leads to it."""
    until: float
    listeners: list[Listener]


class Confirmer:
    """Routes confirmations by request_id. Synchronous: answers come to the listeners, at once or later.

    Args:
        routes: where each run is, and what was answered about it.
        links: instance -> the worker's link, kept by the registry.
    """

    def __init__(self, *, routes: RouteTable, links: Mapping[str, WorkerLink], clock: Clock) -> None:
        self._routes: Final = routes
        self._links: Final = links
        self._clock: Final = clock
        self._names: Final = SessionNames()
        self._sessions: dict[WorkerLink, WorkerSession] = {}
        # In the order in which they were asked.
        self._asked: dict[str, _Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def confirm(self, request_id: str, listener: Listener) -> None:
        """Answer one confirmation, or ask the worker. Repeated, it has one answer.

        Raises:
            InvalidRequestIdError: not 32 lower-case hexadecimal digits.
        """
        outcome = self._routes.confirm(request_id, self._clock.now())
        if outcome is not None and (outcome is not ConfirmOutcome.UNKNOWN or self._placed(request_id)):
            listener.answered(request_id, outcome)
        elif (asked := self._asked.get(request_id)) is not None:
            if listener not in asked.listeners:
                asked.listeners.append(listener)
        elif sessions := self._whom(request_id):
            until = self._clock.now() + self._routes.window + RETENTION_MARGIN_SECONDS
            self._asked[request_id] = _Asked(sessions, until, [listener])
            for session in tuple(sessions):
                session.ask(request_id)
        else:
            listener.answered(request_id, ConfirmOutcome.UNKNOWN)

    def withdraw(self, listener: Listener, request_ids: Iterable[str]) -> None:
        """The listener no longer waits for these."""
        for request_id in request_ids:
            asked = self._asked.get(request_id)
            if asked is not None and listener in asked.listeners:
                asked.listeners.remove(listener)
                if not asked.listeners:
                    self._forget(request_id)

    def expire(self, now: float) -> None:
        """Wait no longer for what no worker has answered while its route was retained."""
        while self._asked and (first := next(iter(self._asked.items())))[1].until <= now:
            self._forget(first[0])
            for listener in first[1].listeners:
                listener.unanswered(first[0])

    async def close(self, seconds: float) -> None:
        """Say goodbye to the workers, within that time."""
        await asyncio.gather(*(session.close(seconds) for session in tuple(self._sessions.values())))

    def _placed(self, request_id: str) -> bool:
        return self._routes.get(request_id) is not None

    def _whom(self, request_id: str) -> set[WorkerSession]:
        """Who may know: the worker that replied, or, as after a restart of this broker, any of them."""
        route = self._routes.get(request_id)
        if route is None:
            return {self._session(link) for link in self._links.values()}
        link = self._links.get(route.worker or "")
        return set() if link is None else {self._session(link)}

    def _session(self, link: WorkerLink) -> WorkerSession:
        if link not in self._sessions:
            self._sessions[link] = WorkerSession(
                link,
                names=self._names,
                clock=self._clock,
                heard=self._heard,
                lost=lambda session: self._lost(link, session),
            )
        return self._sessions[link]

    def _heard(self, session: WorkerSession, request_id: str, outcome: ConfirmOutcome) -> None:
        try:
            route = self._routes.get(request_id)
        except InvalidRequestIdError:
            return  # a worker answers what was never asked
        asked = self._asked.get(request_id)
        if route is None or self._links.get(route.worker or "") is session.link:
            self._routes.confirmed(request_id, outcome, self._clock.now())
        if asked is None:
            return
        asked.sessions.discard(session)
        if outcome is not ConfirmOutcome.UNKNOWN or not asked.sessions:
            self._tell(request_id, outcome)

    def _lost(self, link: WorkerLink, session: WorkerSession) -> None:
        """The worker is lost, which its routes know already."""
        del self._sessions[link]
        now = self._clock.now()
        for request_id in [run for run, asked in self._asked.items() if session in asked.sessions]:
            asked = self._asked[request_id]
            asked.sessions.discard(session)
            if not asked.sessions:
                self._tell(request_id, self._routes.confirm(request_id, now) or ConfirmOutcome.UNKNOWN)

    def _tell(self, request_id: str, outcome: ConfirmOutcome) -> None:
        listeners = self._asked[request_id].listeners
        self._forget(request_id)
        for listener in listeners:
            listener.answered(request_id, outcome)

    def _forget(self, request_id: str) -> None:
        for session in self._asked.pop(request_id).sessions:
            session.forget(request_id)

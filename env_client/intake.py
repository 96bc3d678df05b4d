"""What becomes of one run on the client's side: taken in, confirmed, delivered or abandoned. No I/O."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from env_client.assembly import EpisodeAssembly
from env_client.confirmations import Verdict
from env_client.errors import (
    DeliveryUncertainError,
    EnvError,
    RunCancelledError,
    RunDeadlineError,
    SessionEndedError,
    shown_id,
)
from env_client.statuses import env_error
from env_client.validation import check_episode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import grpc
    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.env_service_pb2 import RunRequest
    from envtrio.v1.episode_pb2 import Episode

    from env_client.home import Home
    from env_client.session import Session
    from env_client.session_driver import Settlement, Ticket

_LOG: Final = logging.getLogger(__name__)

BIG_BYTES: Final = 1024 * 1024
"""Decoding or checking more than this is not done on an event loop."""

_UNCERTAIN: Final = {
    Verdict.WORKER_LOST: ("its worker is lost", "WORKER_LOST"),
    Verdict.UNANSWERED: ("no answer came within the window, or before the client was closed", ""),
}


class Intake:
    """One run: its assembly, and whether a cancel is owed for it.

    A cancel is owed from the moment the call is made until the episode is delivered to the caller, or the
    server said by a status of its own, or in answer to the confirmation, how the run ended. `abandon` pays
    it, once. Both clients use it.

    Args:
        request: what was asked for.
        tell: sends a cancel: request_id and cause. Must not block or raise.
        session: confirms the delivery.
    """

    def __init__(self, request: RunRequest, tell: Callable[[str, str], None], session: Session) -> None:
        self.request: Final = request
        self.request_id: Final[str] = request.request_id
        self.received_bytes = 0
        self.episode: Episode | None = None
        self._assembly = EpisodeAssembly()
        self._tell = tell
        self._session = session
        self._ticket: Ticket | None = None
        self._owes_cancel = True

    @property
    def is_big(self) -> bool:
        """Whether the episode is too big to be checked on an event loop."""
        return self.received_bytes > BIG_BYTES

    @property
    def home(self) -> Home:
        """The process that the run belongs to; in a fork of it, it is neither read nor cancelled."""
        return self._session.home

    def take(self, data: bytes) -> Sequence[TraceDelta]:
        """Apply one message of the stream and return its deltas.

        Raises:
            AssemblyError: the message cannot be decoded or applied.
        """
        self.received_bytes += len(data)
        try:
            return self._assembly.apply(data).deltas
        except EnvError as error:
            self._name(error)
            raise

    def conclude(self) -> Episode:
        """Assemble and check the whole, after the status OK. Delivers nothing yet.

        Raises:
            AssemblyError: the reply is missing, or its counts are not met.
            ValidationError: the episode contradicts itself.
        """
        try:
            episode = self._assembly.finish()
            check_episode(episode)
        except EnvError as error:
            self._name(error)
            raise
        return episode

    def check_wanted(self) -> None:
        """Ask before the delivery is made final.

        Raises:
            RunCancelledError: the run was abandoned meanwhile.
        """
        if not self._owes_cancel:
            raise self.taken_back()

    def confirm(self, settle: Callable[[Settlement], object]) -> None:
        """Ask the server to make the delivery final. `settle` gets what that came to, in another thread.

        Raises:
            RunCancelledError: the run was abandoned meanwhile; nothing was asked.
        """
        self.check_wanted()
        self._ticket = self._session.confirm(self.request_id, settle)

    def deliver(self, episode: Episode, settlement: Settlement) -> Episode:
        """The episode is the caller's: from now on no cancel is owed.

        Raises:
            RunCancelledError: the run was abandoned meanwhile, or the server had taken it back.
            DeliveryUncertainError: nobody can say. No cancel is owed either: the caller has the episode now,
                and a cancel could pull its arrays away.
        """
        if not self._owes_cancel:
            raise self.taken_back()
        self._owes_cancel = False
        if settlement is Verdict.CONFIRMED or settlement is Verdict.NOT_OFFERED:
            self.episode = episode
            return episode
        run = shown_id(self.request_id)
        if settlement is Verdict.DISCARDED:
            raise RunCancelledError(
                f"run {run}: its episode was taken back before it could be confirmed, by a cancel or because "
                "the session was lost for too long; what was kept is discarded: start a new run",
                request_id=self.request_id,
            )
        ended: SessionEndedError | None = None
        if isinstance(settlement, SessionEndedError):
            ended, why, reason = settlement, str(settlement), settlement.reason
        else:
            why, reason = _UNCERTAIN[settlement]
        raise DeliveryUncertainError(
            f"run {run}: its episode arrived, but whether its delivery is final is not known: {why}; "
            "this error has the episode, and a fetch of its arrays will tell",
            episode=episode,
            request_id=self.request_id,
            reason=reason,
        ) from ended

    def ended(self, error: grpc.RpcError, timeout: float | None) -> EnvError:
        """The exception for the status that ended the run, and whether a cancel is still owed.

        No cancel is owed where the server itself gave the status, before a reply: it has settled the run. But
        after WORKER_LOST one is: the worker may come back, to a broker that was restarted meanwhile and does
        not know that the run was given up. None is after ALREADY_EXISTS, whoever says so: it would end the
        first run of that id.
        """
        translated = env_error(error, self.request_id)
        settled = translated.reason not in ("", "WORKER_LOST") and not self._assembly.replied
        if settled or translated.code == "ALREADY_EXISTS":
            self._owes_cancel = False
        if isinstance(translated, RunDeadlineError) and not translated.reason:
            return self.expired(timeout)  # gRPC watched the same deadline, and was quicker.
        return translated

    def abandon(self, cause: str) -> None:
        """Tell the server that nobody wants this run's episode, if that is still owed."""
        if self._owes_cancel:
            self._owes_cancel = False
            if self._ticket is not None:
                self._session.withdraw(self._ticket)
            if sys.is_finalizing():
                # As when nobody closed a coroutine: no thread runs any more, and to start one takes for ever.
                _LOG.warning("run=%s: not cancelled, the interpreter is ending", shown_id(self.request_id))
                return
            self._tell(self.request_id, cause)

    def taken_back(self) -> RunCancelledError:
        """The exception for a run that an earlier failure, or closing the client, has ended."""
        return RunCancelledError(
            f"run {shown_id(self.request_id)}: was abandoned and cancelled, by an earlier failure or "
            "because the client was closed; start a new run",
            request_id=self.request_id,
        )

    def expired(self, timeout: float | None) -> RunDeadlineError:
        """The exception for a run that was not delivered within its `timeout`."""
        return RunDeadlineError(
            f"run {shown_id(self.request_id)}: not delivered within its timeout of {timeout} s, so it was "
            "cancelled; allow more time, or look for what is slow in the worker's log",
            request_id=self.request_id,
        )

    def _name(self, error: EnvError) -> None:
        error.request_id = self.request_id
        error.args = (f"run {shown_id(self.request_id)}: {error.args[0]}",)


def cause_of(error: BaseException) -> str:
    """Why a run was abandoned, for the worker's log."""
    # The caller's own exceptions come here, on the way to the cancel that they owe: nothing may stop it.
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be read)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

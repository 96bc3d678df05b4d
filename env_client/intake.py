"""What becomes of one run on the client's side: taken in, delivered or abandoned. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from env_client.assembly import EpisodeAssembly
from env_client.errors import EnvError, RunCancelledError, RunDeadlineError, shown_id
from env_client.statuses import env_error
from env_client.validation import check_episode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import grpc
    from envtrio.v1.delta_pb2 import TraceDelta
    from envtrio.v1.env_service_pb2 import RunRequest
    from envtrio.v1.episode_pb2 import Episode

BIG_BYTES: Final = 256 * 1024
"""Decoding or checking more than this is not done on an event loop."""


class Intake:
    """One run: its assembly, and whether a cancel is owed for it.

    A cancel is owed from the moment the call is made until the episode is delivered to the caller, or the
    server said by a status of its own how the run ended. `abandon` pays it, once. Both clients use it.

    Args:
        request: what was asked for.
        tell: sends a cancel: request_id and cause. Must not block or raise.
    """

    def __init__(self, request: RunRequest, tell: Callable[[str, str], None]) -> None:
        self.request: Final = request
        self.request_id: Final[str] = request.request_id
        self.received_bytes = 0
        self.episode: Episode | None = None
        self._assembly = EpisodeAssembly()
        self._tell = tell
        self._owes_cancel = True

    @property
    def is_big(self) -> bool:
        """Whether the episode is too big to be checked on an event loop."""
        return self.received_bytes > BIG_BYTES

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

    def deliver(self, episode: Episode) -> Episode:
        """The episode is the caller's: from now on no cancel is owed.

        Raises:
            RunCancelledError: the run was abandoned meanwhile.
        """
        if not self._owes_cancel:
            raise self.taken_back()
        self._owes_cancel = False
        self.episode = episode
        return episode

    def ended(self, error: grpc.RpcError, timeout: float | None) -> EnvError:
        """The exception for the status that ended the run, and whether a cancel is still owed.

        No cancel is owed where the server itself gave the status, before a reply: it has settled the run. Nor
        after ALREADY_EXISTS, whoever says so: it would end the first run of that id.
        """
        translated = env_error(error, self.request_id)
        settled = bool(translated.reason) and not self._assembly.replied
        if settled or translated.code == "ALREADY_EXISTS":
            self._owes_cancel = False
        if isinstance(translated, RunDeadlineError) and not translated.reason:
            return self.expired(timeout)  # gRPC watched the same deadline, and was quicker.
        return translated

    def abandon(self, cause: str) -> None:
        """Tell the server that nobody wants this run's episode, if that is still owed."""
        if self._owes_cancel:
            self._owes_cancel = False
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
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

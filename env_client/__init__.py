"""The client of envtrio: run an episode, watch its deltas, get it assembled and checked, or abandon it."""

from env_client import arrays
from env_client.assembly import EpisodeAssembly
from env_client.client import EnvClient
from env_client.errors import (
    ArraysLostError,
    AssemblyError,
    DeliveryUncertainError,
    DrainingError,
    DuplicateRequestError,
    EnvError,
    EnvironmentFailedError,
    EnvironmentNotFoundError,
    HookFailedError,
    InternalError,
    InvalidRequestError,
    InvalidTaskError,
    MessageTooLargeError,
    ProtocolMismatchError,
    QueueFullError,
    ResourceExhaustedError,
    RunCancelledError,
    RunDeadlineError,
    SessionEndedError,
    UnavailableError,
    ValidationError,
    WorkerLostError,
)
from env_client.request import Endpoint
from env_client.stream import EpisodeStream
from env_client.sync import SyncEnvClient
from env_client.sync_stream import SyncEpisodeStream
from env_client.validation import check_episode

__all__ = [
    "ArraysLostError",
    "AssemblyError",
    "DeliveryUncertainError",
    "DrainingError",
    "DuplicateRequestError",
    "Endpoint",
    "EnvClient",
    "EnvError",
    "EnvironmentFailedError",
    "EnvironmentNotFoundError",
    "EpisodeAssembly",
    "EpisodeStream",
    "HookFailedError",
    "InternalError",
    "InvalidRequestError",
    "InvalidTaskError",
    "MessageTooLargeError",
    "ProtocolMismatchError",
    "QueueFullError",
    "ResourceExhaustedError",
    "RunCancelledError",
    "RunDeadlineError",
    "SessionEndedError",
    "SyncEnvClient",
    "SyncEpisodeStream",
    "UnavailableError",
    "ValidationError",
    "WorkerLostError",
    "arrays",
    "check_episode",
]

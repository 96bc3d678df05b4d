"""The client of envtrio: run an episode, watch its deltas, get it assembled and checked, or abandon it; and
fetch the training arrays that its worker has kept."""

from env_client import arrays
from env_client.assembly import EpisodeAssembly
from env_client.client import EnvClient
from env_client.errors import (
    ArrayBudgetError,
    ArrayProtocolError,
    ArraysCorruptError,
    ArraysIncompleteError,
    ArraysLostError,
    ArraysNotFoundError,
    AssemblyError,
    DeliveryUncertainError,
    DrainingError,
    DuplicateRequestError,
    EnvError,
    EnvironmentFailedError,
    EnvironmentNotFoundError,
    FetchCancelledError,
    FetchDeadlineError,
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
    TokenRangeError,
    UnavailableError,
    ValidationError,
    WorkerLostError,
)
from env_client.request import Endpoint
from env_client.stream import EpisodeStream
from env_client.sync import SyncEnvClient
from env_client.sync_stream import SyncEpisodeStream
from env_client.training_arrays.client import ArrayClient
from env_client.training_arrays.reference import references as array_references
from env_client.training_arrays.sync import SyncArrayClient
from env_client.validation import check_episode

__all__ = [
    "ArrayBudgetError",
    "ArrayClient",
    "ArrayProtocolError",
    "ArraysCorruptError",
    "ArraysIncompleteError",
    "ArraysLostError",
    "ArraysNotFoundError",
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
    "FetchCancelledError",
    "FetchDeadlineError",
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
    "SyncArrayClient",
    "SyncEnvClient",
    "SyncEpisodeStream",
    "TokenRangeError",
    "UnavailableError",
    "ValidationError",
    "WorkerLostError",
    "array_references",
    "arrays",
    "check_episode",
]

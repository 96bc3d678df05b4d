"""The worker's model of an episode: plain Python and numpy, no grpc, no protobuf."""

from env_worker.domain.arrays import (
    TRAINING_ARRAY_FIELDS,
    BoolArray,
    Float32Array,
    Int32Array,
    RoutedExperts,
    SamplingMask,
    TopLogprobs,
)
from env_worker.domain.episode import Episode
from env_worker.domain.errors import InvalidTaskError, ToolError
from env_worker.domain.info import TraceInfo
from env_worker.domain.journal import (
    CallAdded,
    Change,
    ErrorAdded,
    Finished,
    InfoSet,
    Journal,
    LinkAdded,
    MetricSet,
    NodeAdded,
    OkSet,
    PendingSet,
    RewardSet,
    StopSet,
    ToolsSet,
)
from env_worker.domain.messages import ROLES, ImagePart, JsonPart, Message, Part, TextPart, ToolCall
from env_worker.domain.node import Node
from env_worker.domain.records import Call, EpisodeError, Link, Pending, Reward, WeightVersionSpan
from env_worker.domain.sampling import SamplingParams
from env_worker.domain.text import JsonObject, JsonValue
from env_worker.domain.trace import Trace

__all__ = [
    "ROLES",
    "TRAINING_ARRAY_FIELDS",
    "BoolArray",
    "Call",
    "CallAdded",
    "Change",
    "Episode",
    "EpisodeError",
    "ErrorAdded",
    "Finished",
    "Float32Array",
    "ImagePart",
    "InfoSet",
    "Int32Array",
    "InvalidTaskError",
    "Journal",
    "JsonObject",
    "JsonPart",
    "JsonValue",
    "Link",
    "LinkAdded",
    "Message",
    "MetricSet",
    "Node",
    "NodeAdded",
    "OkSet",
    "Part",
    "Pending",
    "PendingSet",
    "Reward",
    "RewardSet",
    "RoutedExperts",
    "SamplingMask",
    "SamplingParams",
    "StopSet",
    "TextPart",
    "ToolCall",
    "ToolError",
    "ToolsSet",
    "TopLogprobs",
    "Trace",
    "TraceInfo",
    "WeightVersionSpan",
]

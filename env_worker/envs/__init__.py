"""Environments and how they are found; no grpc, no protobuf."""

from env_worker.envs.base import Context, Environment
from env_worker.envs.registry import (
    ENTRY_POINT_GROUP,
    EnvironmentLoadError,
    EnvironmentNotFoundError,
    EnvironmentRegistry,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "Context",
    "Environment",
    "EnvironmentLoadError",
    "EnvironmentNotFoundError",
    "EnvironmentRegistry",
]

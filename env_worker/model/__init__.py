"""Clients for the models that environments talk to; no grpc, no protobuf."""

from env_worker.model.base import ModelClient, Turn
from env_worker.model.simulated import SIMULATED, SimulatedModel

__all__ = ["SIMULATED", "ModelClient", "SimulatedModel", "Turn"]

"""Real procedural tasks from the reasoning-gym package (extra `[reasoning-gym]`)."""

from env_worker.envs.reasoning_gym.environment import ReasoningGymEnvironment

__all__ = ["ReasoningGymEnvironment"]

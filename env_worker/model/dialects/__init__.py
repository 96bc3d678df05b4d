"""Dialects: how each API is spoken to. Which one an engine speaks is a setting, never a guess."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from env_worker.model.dialects.openai_chat import OpenAIChat
from env_worker.model.dialects.sglang_chat import SGLangChat
from env_worker.model.dialects.vllm_chat import VllmChat
from env_worker.model.dialects.vllm_completions import VllmCompletions
from env_worker.model.dialects.vllm_generate import VllmGenerate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.model.dialects.base import Dialect

_ALL: Final[tuple[Dialect, ...]] = (
    OpenAIChat(),
    VllmChat(),
    VllmCompletions(),
    VllmGenerate(),
    SGLangChat(),
)

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({dialect.name: dialect for dialect in _ALL})
"""By name."""

__all__ = ["DIALECTS"]

"""Asking for routing rows from a position on, of engines that may find the position too high."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from env_worker.model.dialects.reading import ROUTED_EXPERTS
from env_worker.model.errors import EngineRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.model.dialects.base import Post

BAD_REQUEST = 400


async def post_from(
    post: Post, path: str, body: Mapping[str, Any], key: str, start: int
) -> tuple[Mapping[str, Any], int]:
    """Post `body`, with `start` at `key` if it is not 0; returns the response and the start that was
    asked for.

    A chat template may leave out so much of earlier answers (their reasoning) that the prompt ends before
    `start`, which no client can foresee: vLLM refuses such a request, and then gets it again without a start.
    """
    if not start:
        return await post(path, body), 0
    try:
        return await post(path, {**body, key: start}), start
    except EngineRefusedError as refusal:
        if refusal.status != BAD_REQUEST or ROUTED_EXPERTS not in str(refusal):
            raise
    return await post(path, body), 0

"""Log-probabilities on the wire: four shapes of the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.engine.quirks import Quirk
from tests.engine.tokens import TOKEN_BYTES, TOKEN_TEXTS, VOCABULARY
from tests.engine.values import FLOOR

if TYPE_CHECKING:
    from tests.engine.turn import Turn
    from tests.engine.values import Floats

_ID_TEXTS: Final = tuple(f"token_id:{index}" for index in range(VOCABULARY))


def chat_logprobs(
    turn: Turn, count: int, *, as_ids: bool, cut: bool = True, safe: bool = False
) -> dict[str, Any] | None:
    """OpenAI's chat shape, of `count` candidates asked for: vLLM's chat cuts to the first `count`, its older
    generate does not. `safe`: NaN is as good as missing."""
    if turn.has(Quirk.LOGPROBS_MISSING):
        return None
    heads = turn.heads(count)
    names = _ID_TEXTS if as_ids and not turn.has(Quirk.TOKEN_TEXTS) else TOKEN_TEXTS
    content = []
    known = _safe(turn, heads.logprobs) if safe else heads.logprobs
    rows = zip(turn.sampled.tolist(), heads.ids.tolist(), _told(turn, known), strict=True)
    for sampled, ids, logprobs in rows:
        entries = [
            {"token": names[index], "logprob": logprob, "bytes": None if as_ids else list(TOKEN_BYTES[index])}
            for index, logprob in zip(ids, logprobs, strict=True)
        ]
        token = {**entries[0], "token": names[sampled]}
        content.append({**token, "top_logprobs": entries[: count if cut else None]})
    if content and turn.has(Quirk.SAMPLED_MISSING):
        content[turn.middle] |= {"logprob": FLOOR, "top_logprobs": []}
    return {"content": _short(turn, content)}


def completion_logprobs(turn: Turn, count: int, *, as_ids: bool) -> dict[str, Any] | None:
    """OpenAI's completions shape, the candidates in objects keyed by their texts."""
    if turn.has(Quirk.LOGPROBS_MISSING):
        return None
    heads = turn.heads(count)
    names = _ID_TEXTS if as_ids and not turn.has(Quirk.TOKEN_TEXTS) else TOKEN_TEXTS
    told = _told(turn, heads.logprobs)
    tokens = [names[index] for index in turn.sampled.tolist()]
    top: list[dict[str, Any] | None] = [
        {names[index]: logprob for index, logprob in zip(ids[: count + 1], row, strict=False)}
        for ids, row in zip(heads.ids.tolist(), told, strict=True)
    ]
    sampled: list[Any] = [row[0] for row in told]
    if sampled and turn.has(Quirk.SAMPLED_MISSING):
        sampled[turn.middle] = top[turn.middle] = None
    lengths = np.array([0, *map(len, tokens)])
    return {
        "text_offset": _short(turn, np.cumsum(lengths)[:-1].tolist()),
        "token_logprobs": _short(turn, sampled),
        "tokens": _short(turn, tokens),
        "top_logprobs": _short(turn, top),
    }


def generate_logprobs(turn: Turn, count: int) -> dict[str, Any] | None:
    """vLLM's own shape of 0.32 on: integer ids and ranks, not cut, and no NaN."""
    if turn.has(Quirk.LOGPROBS_MISSING):
        return None
    heads = turn.heads(count)
    unknown = np.isnan(heads.logprobs)
    ranks: list[list[Any]] = heads.ranks.tolist()
    for token, candidate in np.argwhere(unknown).tolist():
        ranks[token][candidate] = None
    told = _told(turn, _safe(turn, heads.logprobs))
    content = []
    rows = zip(turn.sampled.tolist(), heads.ids.tolist(), told, ranks, strict=True)
    for sampled, ids, logprobs, places in rows:
        entries = [
            {"token_id": index, "logprob": logprob, "rank": rank}
            for index, logprob, rank in zip(ids, logprobs, places, strict=True)
        ]
        content.append({**entries[0], "token_id": sampled, "top_logprobs": entries})
    if content and turn.has(Quirk.SAMPLED_MISSING):
        content[turn.middle] |= {"logprob": FLOOR, "rank": None, "top_logprobs": []}
    return {"content": _short(turn, content)}


def meta_logprobs(turn: Turn, count: int) -> dict[str, Any]:
    """SGLang's `meta_info`: `[logprob, id, text]`, the best candidates by rank whether sampled or not, and
    null for what is not finite."""
    if turn.has(Quirk.LOGPROBS_MISSING):
        return {}
    heads = turn.heads(count)
    told: list[list[Any]] = [
        [value if value is not None and np.isfinite(value) else None for value in row]
        for row in _told(turn, heads.logprobs, floor=-np.inf)
    ]
    sampled = [[row[0], index, None] for index, row in zip(turn.sampled.tolist(), told, strict=True)]
    first = 1 if turn.has(Quirk.SAMPLED_OUTSIDE_TOP_K) or turn.has(Quirk.SAMPLED_REPEATED) else 0
    top = [
        [[logprob, index, None] for index, logprob in zip(ids[first:], row[first:], strict=True)]
        for ids, row in zip(heads.ids.tolist(), told, strict=True)
    ]
    if sampled and turn.has(Quirk.SAMPLED_MISSING):
        sampled[turn.middle][0] = None
    return {
        "output_token_logprobs": _short(turn, sampled),
        "output_token_logprobs_length": len(sampled),
        "output_top_logprobs": _short(turn, top) if count else None,
    }


def _safe(turn: Turn, logprobs: Floats) -> Floats:
    """Without NaN, unless the test wants it on the wire."""
    return (
        logprobs if turn.has(Quirk.LOGPROB_NAN_LITERAL) else np.nan_to_num(logprobs, nan=FLOOR, neginf=FLOOR)
    )


def _told(turn: Turn, logprobs: Floats, floor: float = FLOOR) -> list[list[Any]]:
    """As JSON has them: what is below the floor becomes it, NaN stays."""
    told: list[list[Any]] = np.maximum(logprobs, floor).tolist()
    if told and turn.has(Quirk.LOGPROB_NULL):
        told[turn.middle][0] = None
    return told


def _short(turn: Turn, per_token: list[Any]) -> list[Any]:
    return per_token[:-1] if turn.has(Quirk.LOGPROBS_SHORT) else per_token

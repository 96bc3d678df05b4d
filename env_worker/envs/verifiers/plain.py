"""Python values as plain JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from env_worker.domain.text import clean_text


def jsonable(value: Any) -> Any:
    """`value` as JSON can hold it: what it cannot becomes text, as NaN does."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        try:
            text = json.dumps(_plain_all(value), ensure_ascii=False)
        except (ValueError, RecursionError):
            text = json.dumps(str(value)[:10_000])
    return json.loads(clean_text(text))


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else str(value)


def _plain_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain_all(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain_all(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float)) else _plain_all(_plain(value))

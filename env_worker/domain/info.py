"""Free-form JSON values of a trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, MutableMapping

from env_worker.domain.text import JsonValue, check_text, encode_json


class TraceInfo(MutableMapping[str, JsonValue]):
    """Maps keys to JSON values. A value is encoded when it is set, and decoded each time it is read.

    So what is read is a copy: to change a value, assign it again. Assigning streams the key's whole value;
    deleting rewrites the trace's history, which sends the trace anew. Setting raises TypeError for a value
    that is not JSON and ValueError for NaN, infinities and lone surrogates, naming the key; a failed set
    changes nothing.
    """

    __slots__ = ("_on_remove", "_on_set", "_texts")

    def __init__(self, on_set: Callable[[str, str], None], on_remove: Callable[[set[str]], None]) -> None:
        self._texts: dict[str, str] = {}
        self._on_set = on_set
        self._on_remove = on_remove

    def __getitem__(self, key: str) -> JsonValue:
        return json.loads(self._texts[key])

    def __setitem__(self, key: str, value: JsonValue) -> None:
        check_text(key, f"info key {key!r}")
        text = encode_json(value, f"info[{key!r}]")
        if self._texts.get(key) != text:
            self._texts[key] = text
            self._on_set(key, text)

    def __delitem__(self, key: str) -> None:
        del self._texts[key]
        self._on_remove({key})

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def __repr__(self) -> str:
        return repr(dict(self))

    def clear(self) -> None:
        """Delete every key, with one rewrite."""
        if self._texts:
            keys = set(self._texts)
            self._texts.clear()
            self._on_remove(keys)

    def adopt(self, other: TraceInfo) -> None:
        """Take over the keys of `other` with their values, as texts: nothing is decoded, nothing streamed."""
        self._texts.update(other.json_texts())

    def json_texts(self) -> dict[str, str]:
        """A copy of the mapping with each value as its JSON text."""
        return dict(self._texts)

"""An engine as a run may use it: where it is, and how it is spoken to."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from env_worker.model.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER_VALUE: Final = re.compile(r"[ -~]+")
_OF_HTTP: Final = re.compile(
    r"accept(-[a-z-]+)?|content-[a-z-]+|cache-control|date|pragma|prefer|priority|user-agent", re.IGNORECASE
)
"""Headers by which HTTP itself says what a request is: none carries a secret, and their values are common
words. Any other's may be one."""


def key_in(variable: str) -> str:
    """The API key in environment variable `variable` of this process, without white space around it: files
    that keys are read from end with a newline. LookupError naming the variable, and never what it holds, if
    it is not set, or holds what no HTTP header can carry."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise LookupError(
            f"environment variable {variable} of this worker is not set to anything; set it to the "
            "endpoint's API key, or ask for no key"
        )
    if not _HEADER_VALUE.fullmatch(key):
        raise LookupError(
            f"environment variable {variable} of this worker holds characters that no header can carry "
            "(control characters, or others than ASCII's); set it to the key alone, on one line"
        )
    return key


@dataclass(frozen=True, slots=True)
class Engine:
    """Checked against the worker's lists. It can be pickled, and holds no secret.

    `url` is the base URL without a slash at its end (`http://engine:8000/v1`), `dialect` one of
    `env_worker.model.dialects.DIALECTS`, `headers` go with each request, `key_variable` is the NAME of the
    environment variable of this process that holds the API key, or "".
    """

    url: str
    model: str
    dialect: str = "openai-chat"
    headers: Mapping[str, str] = field(default_factory=dict)
    key_variable: str = ""

    @property
    def api_key(self) -> str:
        """The key, read anew each time; "" where there is none. LookupError: see `key_in`."""
        return key_in(self.key_variable) if self.key_variable else ""

    def redacted(self, text: str, most: int | None = None) -> str:
        """`text`, which may be this engine's words, without its key and without the values of its headers, no
        more than `most` characters of it: see `env_worker.model.redaction`. Those of headers that HTTP
        defines stay, and what the URL and the model's name have in them, since each call tells those."""
        told = f"{self.url} {self.model}"
        headers = self.headers.items()
        may_be = [value for name, value in headers if not _OF_HTTP.fullmatch(name) and value not in told]
        return redacted(text, self._keys, may_be, most=most)

    def without_key(self, text: str) -> str:
        """`text`, which is a name of this engine's and no words, without its key. A header's value may well
        be in it, as the label of weights that the run asks for by one, and the key's first word; the name of
        the model is what was asked for."""
        return text if text == self.model else redacted(text, self._keys, name=True)

    @property
    def _keys(self) -> tuple[str, ...]:
        try:
            return (self.api_key,)
        except LookupError:  # then it was not sent
            return ()

"""An engine as a run may use it: where it is, and how it is spoken to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        """The key, read anew each time; "" where there is none. LookupError naming the variable if it is not
        set."""
        if not self.key_variable:
            return ""
        if not (key := os.environ.get(self.key_variable)):
            raise LookupError(
                f"environment variable {self.key_variable} of this worker is not set; set it to the "
                "endpoint's API key, or ask for no key"
            )
        return key

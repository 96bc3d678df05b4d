"""Where the paths of an engine are."""

from __future__ import annotations


def request_url(base: str, path: str) -> str:
    """The URL of `path`: behind `base`, or with a "/" at its beginning behind the server's root, which is
    `base` without a final `/v1` (a gateway may have a path of its own before it)."""
    if path.startswith("/"):
        return base.removesuffix("/v1") + path
    return f"{base}/{path}"

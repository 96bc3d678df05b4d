"""Exceptions that environments raise to tell the worker more than "it failed"."""

from __future__ import annotations


class InvalidTaskError(ValueError):
    """The task cannot be run as it is; say which key, which value, what is allowed.

    Raised by `validate`, or before the first trace, the caller gets INVALID_ARGUMENT and no episode. Raised
    later it is an error of the episode like any other.
    """

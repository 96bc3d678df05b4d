"""The tokenizer of verifiers' train client: what can be said of it at the start, and where it cannot be
loaded."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

FIELD: Final = "renderer_model_name"
"""The client's field that names it."""

_HUB_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_FILES: Final = ("tokenizer", "vocab", "tekken")
"""What the names of a tokenizer's files begin with."""
_SUFFIXES: Final = (".model", ".tiktoken")
"""Or end with."""
_SAID: Final = 300


def check_tokenizer(client: Mapping[str, Any]) -> None:
    """ValueError, naming the field of `client`, where that is a folder which is not there or has no file of
    a tokenizer. What may be a name on the hub is not looked up, and no file is read."""
    name = client.get(FIELD)
    if not isinstance(name, str):
        return  # none, or what the package refuses
    field = f"field 'client.{FIELD}' is {name!r}"
    if not os.path.isdir(name):
        if _HUB_NAME.fullmatch(name):
            return
        raise ValueError(
            f"{field}, but there is no such folder, seen from {os.getcwd()}, and it is no name of the hub; "
            "give the folder with the tokenizer's files"
        )
    try:
        files = os.listdir(name)
    except OSError as error:
        raise ValueError(
            f"{field}, a folder that cannot be read ({error.strerror}); let this user read it"
        ) from error
    if not any(file.startswith(_FILES) or file.endswith(_SUFFIXES) for file in files):
        raise ValueError(
            f"{field}, a folder without a file of a tokenizer, such as tokenizer.json; give the one that has "
            "it, often the model's own"
        )


def name_the_tokenizer() -> None:
    """Have verifiers name the field where a tokenizer cannot be loaded: the libraries below know nothing of
    it. For all rollouts of this process; again: changes nothing."""
    try:
        base: Any = importlib.import_module("renderers.base")
        original: Callable[..., Any] = base.load_tokenizer
    except (ImportError, AttributeError) as error:
        logger.warning(
            "this version of verifiers is not known here (%s): where a tokenizer cannot be loaded, errors do "
            "not say which setting names it",
            error,
        )
        return
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def load_tokenizer(name: str, *more: Any, **named: Any) -> Any:
        try:
            return original(name, *more, **named)
        except Exception as error:
            said = " ".join(str(error).split())[:_SAID]
            raise ValueError(
                f"the tokenizer {name!r} cannot be loaded: set {FIELD} of the client, in the environment's "
                "file, to a folder that has it, or to a name that this host finds on the hub "
                f"({type(error).__name__}: {said})"
            ) from error

    base.load_tokenizer = load_tokenizer

"""What follows `verifiers:` on the command line: a configuration file, or the id of an installed environment.

Read without the package, so that what is wrong with a file is said before the seconds that it takes to load.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from env_worker.envs.task_fields import shown
from env_worker.envs.verifiers.tokenizer import check_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLIENTS: Final = ("eval", "train")
MAX_CONCURRENCY: Final = 4096

_KEYS: Final = ("env", "client", "concurrency", "preseed")
_SUFFIXES: Final[Mapping[str, Callable[[str], Any]]] = {".json": json.loads, ".toml": tomllib.loads}
_OF_THE_RUN: Final = ("base_url", "api_key_var", "headers", "headers_from_env")
"""Fields of verifiers' client that follow from the endpoint of each run."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class VerifiersSettings:
    """One served environment.

    `env` is verifiers' own configuration. `client` that of its client, with a `type` of `CLIENTS` and without
    what each run says: endpoint, key and headers. `concurrency` is how many episodes run at once, None: as
    many as the worker takes. `preseed`: whether the bundled chat program is started with this interpreter
    rather than with one that uv prepares, which needs a network. `source` names it all in error messages.
    """

    name: str
    source: str
    env: Mapping[str, Any]
    client: Mapping[str, Any] = field(default_factory=lambda: {"type": CLIENTS[0]})
    concurrency: int | None = None
    preseed: bool = True

    @property
    def client_type(self) -> str:
        """`eval`: text only, any API. `train`: token ids and arrays, by vLLM's `/inference/v1/generate`."""
        kind: str = self.client["type"]
        return kind


def read_settings(argument: str) -> VerifiersSettings:
    """The settings that `argument` names: the path of a JSON or TOML file, else an id.

    A file without the key `env` is verifiers' own configuration and nothing else. ValueError naming the file
    and the field that is wrong.
    """
    if not argument:
        raise ValueError(
            "it does not say which environment; write verifiers:PATH with a .json or .toml file, or "
            "verifiers:ID"
        )
    path = Path(argument)
    if path.suffix not in _SUFFIXES:
        if path.is_file():
            raise ValueError(f"{argument} is a file, but of neither JSON nor TOML; name it .json or .toml")
        name = argument.rsplit("/", 1)[-1].partition("@")[0]
        return VerifiersSettings(_name(name), f"id {argument!r}", {"taskset": {"id": argument}})
    content = _content(path)
    if "env" not in content:
        return VerifiersSettings(_name(path.stem), str(path), content)
    for key in content:
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(
                f"{path}: field {key!r} is unknown{hint}; beside 'env', which is verifiers' own, there are "
                f"{', '.join(_KEYS[1:])}"
            )
    env = content["env"]
    if not isinstance(env, dict):
        raise _wrong(path, "env", env, "an object, verifiers' own configuration")
    return VerifiersSettings(
        _name(path.stem),
        str(path),
        env,
        _client(path, content.get("client", CLIENTS[0])),
        _concurrency(path, content.get("concurrency")),
        _preseed(path, content.get("preseed", True)),
    )


def _content(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); give the path of a .json or .toml file"
        ) from error
    try:
        content = _SUFFIXES[path.suffix](text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


def _client(path: Path, value: object) -> dict[str, Any]:
    client = {"type": value} if isinstance(value, str) else value
    if not isinstance(client, dict):
        raise _wrong(path, "client", value, "'eval', 'train', or an object with such a 'type'")
    kind = client.get("type")
    if kind not in CLIENTS:
        raise _wrong(path, "client.type", kind, " or ".join(map(repr, CLIENTS)))
    for key in _OF_THE_RUN:
        if key in client:
            raise ValueError(
                f"{path}: field 'client.{key}' is set, but each run says that by its endpoint; leave it out, "
                "and start the worker with --model-url"
            )
    try:
        check_tokenizer(client)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return client


def _concurrency(path: Path, value: object) -> int | None:
    if value is None or (type(value) is int and 1 <= value <= MAX_CONCURRENCY):
        return value
    raise _wrong(path, "concurrency", value, f"an integer between 1 and {MAX_CONCURRENCY}")


def _preseed(path: Path, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, "preseed", value, "true or false")
    return value


def _wrong(path: Path, key: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{path}: field {key!r} is {shown(value)}, but must be {wanted}")


def _name(text: str) -> str:
    """`text` as a name to serve it under."""
    return _NOT_IN_NAMES.sub("-", text).lstrip("-._") or "verifiers"

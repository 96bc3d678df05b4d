"""What follows `verifiers:` on the command line, and what is said when it will not do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.envs import registry
from env_worker.envs.registry import BuiltIn, EnvironmentLoadError, EnvironmentRegistry
from env_worker.envs.verifiers.settings import VerifiersSettings, read_settings

if TYPE_CHECKING:
    from pathlib import Path

    from env_worker.envs.base import Context

ENV = {"taskset": {"id": "calc"}}


def written(folder: Path, content: object, name: str = "my calc.json") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_an_id() -> None:
    assert read_settings("owner/calc@1.2") == VerifiersSettings(
        "calc", "id 'owner/calc@1.2'", {"taskset": {"id": "owner/calc@1.2"}}
    )


def test_verifiers_own_file(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, ENV))
    assert (found.name, found.env, found.client_type, found.preseed) == ("my-calc", ENV, "eval", True)
    toml = written(tmp_path, '[taskset]\nid = "calc"\n', "calc.toml")
    assert read_settings(toml).env == ENV


def test_our_file(tmp_path: Path) -> None:
    client = {"type": "train", "renderer": {"name": "qwen3"}}
    content = {"env": ENV, "client": client, "concurrency": 8, "preseed": False}
    found = read_settings(written(tmp_path, content))
    assert (found.env, found.client, found.concurrency, found.preseed) == (ENV, client, 8, False)
    assert read_settings(written(tmp_path, {"env": ENV, "client": "train"})).client == {"type": "train"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "holds a list, expected an object"),
        ({"env": 1}, "field 'env' is 1, but must be an object"),
        ({"env": ENV, "clint": "eval"}, "'clint' is unknown .did you mean 'client'"),
        ({"env": ENV, "client": "chat"}, "'client.type' is 'chat', but must be 'eval' or 'train'"),
        ({"env": ENV, "client": {}}, "'client.type' is None"),
        ({"env": ENV, "client": 3}, "'client' is 3"),
        ({"env": ENV, "client": {"type": "eval", "base_url": "x"}}, "'client.base_url' is set, but each run"),
        ({"env": ENV, "concurrency": 0}, "'concurrency' is 0, but must be an integer between 1"),
        ({"env": ENV, "concurrency": True}, "'concurrency' is True"),
        ({"env": ENV, "preseed": 1}, "'preseed' is 1"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, content: object, words: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=words) as wrong:
        read_settings(path)
    assert path in str(wrong.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read.*No such file"):
        read_settings(str(tmp_path / "missing.toml"))
    with pytest.raises(ValueError, match="of neither JSON nor TOML"):
        read_settings(written(tmp_path, ENV, "calc.yaml"))
    with pytest.raises(ValueError, match="does not say which environment"):
        read_settings("")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("verifiers", "does not say which environment"),
        ("verifiers:/no/such.json", "such.json cannot be read"),
    ],
)
def test_at_the_start_of_a_worker(spec: str, words: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=words):
        EnvironmentRegistry([spec])


class OwnName:
    """Stands for an environment of which the registry knows that it names itself."""

    let_go_of: list[float]

    def __init__(self, argument: str = "") -> None:
        self.name = f"own-{argument}"
        self.let_go_of = []

    async def run(self, context: Context) -> None:
        """Nothing to do."""

    def let_go(self, seconds: float) -> None:
        self.let_go_of.append(seconds)
        if "broken" in self.name:
            raise RuntimeError("it does not let go")


@pytest.fixture
def own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = BuiltIn(f"{__name__}:OwnName", takes_argument=True, names_itself=True)
    monkeypatch.setattr(registry, "BUILT_INS", {"own": built_in})
    monkeypatch.setattr(registry, "_resolve", lambda spec, target: OwnName)


@pytest.mark.usefixtures("own_name")
async def test_it_is_served_under_its_own_name_and_lets_go(caplog: pytest.LogCaptureFixture) -> None:
    found = EnvironmentRegistry(["own:a", "other=own:b", "own:broken"])
    assert found.names == ("own-a", "other", "own-broken")
    await found.close(3.0)
    environments: list[Any] = [found.get(name) for name in found.names]
    assert [one.let_go_of for one in environments] == [[3.0], [3.0], [3.0]]
    assert "it does not let go" in caplog.text

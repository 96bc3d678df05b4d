"""What is said of a tokenizer that is not where the file says."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.envs.verifiers.settings import read_settings
from env_worker.envs.verifiers.tokenizer import name_the_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, name: Any) -> str:
    path = folder / "file.json"
    client = {"type": "train", "renderer_model_name": name}
    path.write_text(json.dumps({"env": {"taskset": {"id": "calc"}}, "client": client}))
    return str(path)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", None, 7, "made"])
def test_a_name_of_the_hub_and_a_folder_with_a_tokenizer_pass(
    tmp_path: Path, name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("tokenizer.json", "vocab.txt", "tokenizer.model", "spiece.model", "qwen.tiktoken"):
        folder = tmp_path / "made"
        folder.mkdir(exist_ok=True)
        (folder / file).touch()
        assert read_settings(written(tmp_path, name)).client["renderer_model_name"] == name
        (folder / file).unlink()


@pytest.mark.parametrize("name", ["/models/none", "./none", "../none", "~/none", "a/b/c", "", "file.json/"])
def test_a_folder_that_is_missing_is_told_at_the_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, name)
    with pytest.raises(ValueError, match="no such folder") as told:
        read_settings(path)
    assert str(told.value).startswith(f"{path}: field 'client.renderer_model_name' is {name!r}, but")
    assert f"seen from {tmp_path}" in str(told.value)


@pytest.mark.parametrize("files", [[], ["config.json", "model.safetensors"]])
def test_a_folder_without_a_tokenizer_is_told_at_the_start(tmp_path: Path, files: list[str]) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    for file in files:
        (folder / file).touch()
    with pytest.raises(ValueError, match=r"renderer_model_name' is .*base', a folder without a file"):
        read_settings(written(tmp_path, str(folder)))


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.listdir", refuse)
    with pytest.raises(ValueError, match=r"renderer_model_name' .* cannot be read \(Permission denied\)"):
        read_settings(written(tmp_path, str(tmp_path)))


def load_tokenizer(name: str, *, revision: str = "") -> Any:
    if name == "none":
        raise OSError("We couldn't connect to the hub\nto load the files" + "x" * 1_000)
    return (name, revision)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("renderers.base")
    module.load_tokenizer = load_tokenizer
    monkeypatch.setitem(sys.modules, "renderers", ModuleType("renderers"))
    monkeypatch.setitem(sys.modules, "renderers.base", module)
    return module


def test_a_tokenizer_that_cannot_be_loaded_is_told_with_its_field(package: Any) -> None:
    name_the_tokenizer()
    once = package.load_tokenizer
    name_the_tokenizer()
    assert package.load_tokenizer is once
    assert once("some", revision="r") == ("some", "r")
    with pytest.raises(ValueError, match="the tokenizer 'none' cannot be loaded: set renderer_model") as told:
        once("none")
    assert "OSError: We couldn't connect to the hub to load the files" in str(told.value)
    assert len(str(told.value)) < 600, "it crosses as a part of another error"
    assert isinstance(told.value.__cause__, OSError)


def test_a_version_that_has_it_no_longer(package: Any, caplog: pytest.LogCaptureFixture) -> None:
    del package.load_tokenizer
    name_the_tokenizer()
    assert "errors do not say which setting names it" in caplog.text

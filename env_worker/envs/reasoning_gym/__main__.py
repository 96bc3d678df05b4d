"""`python -m env_worker.envs.reasoning_gym` lists the datasets; with the name of one, what it takes as params
and the value that each has where it is left out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from env_worker.envs.reasoning_gym.catalogue import LISTING, Catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 where the package is missing, or has no such dataset."""
    try:
        return _list(arguments)
    except BrokenPipeError:
        return 0  # whoever read the list has read enough
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            # Nor shall the interpreter complain when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _list(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog=LISTING, description="List the datasets of reasoning-gym.")
    parser.add_argument("dataset", nargs="?", help="list what this one takes as params, with the defaults")
    name: str | None = parser.parse_args(arguments).dataset
    try:
        catalogue = Catalogue()
    except ImportError as error:
        print(
            f"reasoning-gym is not installed ({error}); run: pip install 'envtrio[reasoning-gym]'",
            file=sys.stderr,
        )
        return 2
    if name is None:
        print(*catalogue.names, sep="\n")
    elif name not in catalogue.names:
        print(catalogue.unknown(name), file=sys.stderr)
        return 2
    else:
        for param, value in catalogue.defaults(name).items():
            print(f"{param} = {json.dumps(value, default=str)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

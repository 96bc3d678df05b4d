"""Environments are loaded once, at start-up, by spec; the wire only looks names up."""

from __future__ import annotations

import sys
import threading
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from env_worker.envs import registry
from env_worker.envs.registry import EnvironmentLoadError, EnvironmentNotFoundError, EnvironmentRegistry
from env_worker.envs.synthetic import SyntheticEnvironment

if TYPE_CHECKING:
    from env_worker.envs.base import Context

MODULE = "envtrio_test_environments"


class Plain:
    async def run(self, context: Context) -> None:
        """Nothing to do."""


class Named(Plain):
    name = "named"


class Blocking:
    def run(self, context: Context) -> None:
        """Not a coroutine function."""


class WithoutContext:
    async def run(self) -> None:
        """Takes no context."""


class AsyncValidate(Plain):
    async def validate(self, task: dict[str, Any]) -> None:
        """Not a plain method."""


def raising() -> Plain:
    raise SystemExit("no licence")


async def coroutine_factory() -> Plain:
    return Plain()


INSTANCE = Plain()


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    """The things above, importable under one name."""
    found = ModuleType(MODULE)
    found.__dict__.update({name: thing for name, thing in globals().items() if not name.startswith("_")})
    found.__dict__["factory"] = lambda: INSTANCE
    monkeypatch.setitem(sys.modules, MODULE, found)


def test_built_ins_are_served_under_their_names() -> None:
    served = EnvironmentRegistry(["synthetic"])
    assert served.names == ("synthetic",)
    assert isinstance(served.get("synthetic"), SyntheticEnvironment)
    assert served.get("synthetic") is served.get("synthetic")
    assert "synthetic" in served
    assert len(served) == 1


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (f"{MODULE}:INSTANCE", f"{MODULE}:INSTANCE"),
        (f"{MODULE}:factory", f"{MODULE}:factory"),
        (f"{MODULE}:Plain", f"{MODULE}:Plain"),
        (f"{MODULE}:Named", "named"),
        (f"mine={MODULE}:Named", "mine"),
        ("load=synthetic", "load"),
    ],
)
def test_instance_class_and_factory_and_their_names(spec: str, name: str) -> None:
    served = EnvironmentRegistry([spec])
    assert served.names == (name,)
    served.get(name)


def test_a_factory_s_instance_is_shared() -> None:
    assert EnvironmentRegistry([f"{MODULE}:factory"]).get(f"{MODULE}:factory") is INSTANCE


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("maths", f"{MODULE}:Named", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])
    assert EnvironmentRegistry(["maths"]).names == ("maths",)
    with pytest.raises(EnvironmentLoadError, match="one of maths, reasoning-gym, synthetic, verifiers, or"):
        EnvironmentRegistry(["math"])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "no entry point"),
        ("nowhere_at_all:Env", "ModuleNotFoundError.*PYTHONPATH"),
        (f"{MODULE}:Plane", "did you mean 'Plain'"),
        (f"{MODULE}:Blocking", "run that is no coroutine function.*async def run"),
        (f"{MODULE}:MODULE", "str has no method run"),
        (f"{MODULE}:WithoutContext", "does not take one context"),
        (f"{MODULE}:AsyncValidate", "validate is no plain method"),
        (f"{MODULE}:coroutine_factory", "factory is a coroutine function"),
        (f"{MODULE}:raising", "SystemExit: no licence"),
        ("a-b:c", "not of the form module:attribute"),
        ("bad name=synthetic", "is no name to serve it under"),
        ("=synthetic", "is no name to serve it under"),
        ("synthetic:more", "takes no argument 'more'"),
        ("reasoning-gym:", "takes no argument ''"),
    ],
)
def test_what_cannot_be_served_is_named_with_the_reason(spec: str, reason: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=f"(?s)cannot load environment .*{reason}") as caught:
        EnvironmentRegistry([spec])
    assert caught.value.spec == spec


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(EnvironmentLoadError, match=r"pip install 'envtrio\[reasoning-gym\]'"):
        EnvironmentRegistry(["reasoning-gym"])


@pytest.mark.parametrize(
    ("specs", "name"),
    [(["synthetic", "synthetic"], "synthetic"), (["echo=synthetic", f"echo={MODULE}:Named"], "echo")],
)
def test_a_name_is_served_once_and_what_is_said_then_works(specs: list[str], name: str) -> None:
    with pytest.raises(EnvironmentLoadError, match=f"'{name}' is taken already") as caught:
        EnvironmentRegistry(specs)
    advised = str(caught.value).rpartition(" ")[2]
    assert advised == f"OTHER={specs[1].rpartition('=')[2]}"
    assert EnvironmentRegistry([specs[0], advised]).names == (name, "OTHER")


def test_an_unknown_name_lists_the_known_ones_and_imports_nothing() -> None:
    served = EnvironmentRegistry(["synthetic", f"{MODULE}:Named"])
    with pytest.raises(
        EnvironmentNotFoundError, match=r"'synthetc' is not.*'synthetic'\?\): ask for one of"
    ) as caught:
        served.get("synthetc")
    assert caught.value.known == ("synthetic", "named")
    assert isinstance(caught.value, KeyError)
    with pytest.raises(EnvironmentNotFoundError):
        served.get(f"{MODULE}:Plain")


class Holder:
    name = "holder"

    def __init__(self) -> None:
        self.given: list[float] = []
        self.wait = threading.Event()
        self.wait.set()
        self.failure: BaseException | None = None

    async def run(self, context: object) -> None: ...

    def let_go(self, seconds: float) -> None:
        self.given.append(seconds)
        self.wait.wait()
        if self.failure is not None:
            raise self.failure


HOLDER = Holder()


@pytest.mark.parametrize("failure", [None, ValueError("mine"), SystemExit(3)])
async def test_an_environment_lets_go_and_may_fail(
    failure: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    HOLDER.failure = failure
    HOLDER.given.clear()
    await EnvironmentRegistry((f"{__name__}:HOLDER",)).close(3.0)
    assert HOLDER.given == [3.0]
    assert ("could not let go" in caplog.text) is (failure is not None)


async def test_one_that_never_lets_go_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("env_worker.envs.registry.LET_GO_GRACE_SECONDS", 0.05)
    HOLDER.failure = None
    HOLDER.wait.clear()
    try:
        await EnvironmentRegistry((f"{__name__}:HOLDER",)).close(0.0)
        assert "1 environments have not let go" in caplog.text
    finally:
        HOLDER.wait.set()

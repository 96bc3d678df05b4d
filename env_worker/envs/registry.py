"""The environments that a worker was started with, by the names that clients may ask for."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import re
import threading
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from env_worker.envs.base import Environment

logger = logging.getLogger(__name__)

LET_GO_GRACE_SECONDS: Final = 2.0
"""Beyond what an environment was given to let go in."""
ENTRY_POINT_GROUP: Final = "envtrio.environments"

_DEFINE_RUN: Final = "define: async def run(self, context) -> None"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_MODULE_ATTRIBUTE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """An environment of ours: where it is, the extra that it needs, and whether `NAME:ARGUMENT` is one.

    One that `names_itself` is served under its `name`, since its argument is a path or the like.
    """

    target: str
    extra: str = ""
    takes_argument: bool = False
    names_itself: bool = False


BUILT_INS: Final[Mapping[str, BuiltIn]] = {
    "synthetic": BuiltIn("env_worker.envs.synthetic:SyntheticEnvironment"),
    "reasoning-gym": BuiltIn(
        "env_worker.envs.reasoning_gym:ReasoningGymEnvironment", extra="reasoning-gym", takes_argument=True
    ),
    "verifiers": BuiltIn(
        "env_worker.envs.verifiers.environment:VerifiersEnvironment",
        extra="verifiers",
        takes_argument=True,
        names_itself=True,
    ),
}


class EnvironmentLoadError(Exception):
    """An environment named at start-up cannot be served; the message gives the reason and the next step."""

    def __init__(self, spec: str, reason: str, next_step: str) -> None:
        super().__init__(f"cannot load environment {spec!r}: {reason}; {next_step}")
        self.spec = spec


class EnvironmentNotFoundError(KeyError):
    """No environment of that name is served here."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        close = get_close_matches(name, self.known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        self._text = (
            f"environment {name[:128]!r} is not served here{hint}: "
            f"ask for one of {', '.join(self.known) or '(none)'}"
        )
        super().__init__(self._text)

    def __str__(self) -> str:
        return self._text  # KeyError would show its repr


class EnvironmentRegistry:
    """Loads each spec once, at start-up, for all runs to share; afterwards it only looks names up.

    A spec is a built-in (`synthetic`, `reasoning-gym`, `reasoning-gym:chain_sum`), an entry point of the
    group `envtrio.environments`, or `module:attribute` naming an instance, a class or a factory without
    arguments. It is served under the name in front (`NAME=SPEC`), else a `module:attribute` under its `name`,
    else under the spec.

    Raises EnvironmentLoadError when a spec cannot be loaded, is no environment, or takes a name twice.
    """

    def __init__(self, specs: Iterable[str]) -> None:
        self._environments: dict[str, Environment] = {}
        for spec in specs:
            name, environment = _load(spec)
            if name in self._environments:
                target = spec.rpartition("=")[2]
                raise EnvironmentLoadError(
                    spec, f"the name {name!r} is taken already", f"serve one under another: OTHER={target}"
                )
            self._environments[name] = self._served(spec, environment)

    async def close(self, seconds: float) -> None:
        """Let go of what the environments hold, waiting at most so long for runs that have been cancelled.
        While their loop still runs: it calls the `let_go(seconds)` of those that have one, each in a thread
        of its own, as it may wait for that loop. One that takes longer does not hold up the worker's end."""
        closing = [
            _called_aside(let_go, seconds)
            for environment in self._environments.values()
            if callable(let_go := getattr(environment, "let_go", None))
            and not inspect.iscoroutinefunction(let_go)
        ]
        if not closing:
            return
        ended, late = await asyncio.wait(closing, timeout=seconds + LET_GO_GRACE_SECONDS)
        for outcome in ended:
            if (error := outcome.exception()) is not None:
                logger.error("an environment could not let go of what it holds", exc_info=error)
        if late:
            logger.error("%d environments have not let go of what they hold in %g s", len(late), seconds)

    def _served(self, spec: str, environment: Environment) -> Environment:
        return environment

    @property
    def names(self) -> tuple[str, ...]:
        """The served names, in the order of the command line."""
        return tuple(self._environments)

    def get(self, name: str) -> Environment:
        """The environment served as `name`. Raises EnvironmentNotFoundError; never imports anything."""
        try:
            return self._environments[name]
        except KeyError:
            raise EnvironmentNotFoundError(name, self._environments) from None

    def __contains__(self, name: object) -> bool:
        return name in self._environments

    def __len__(self) -> int:
        return len(self._environments)


def _called_aside(let_go: Callable[[float], object], seconds: float) -> asyncio.Future[None]:
    """Call it in a thread that the process does not wait for."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

    def call() -> None:
        failure: BaseException | None = None
        try:
            let_go(seconds)
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, failure)

    threading.Thread(target=call, name="let-go", daemon=True).start()
    return outcome


def _load(spec: str) -> tuple[str, Environment]:
    alias, equals, target = spec.rpartition("=")
    name, colon, argument = target.partition(":")
    served = target
    if name in BUILT_INS:
        environment = _built_in(spec, BUILT_INS[name], argument if colon else None)
        if BUILT_INS[name].names_itself:
            served = environment.name
    elif colon:
        environment = _instance(spec, _resolve(spec, target))
        declared = getattr(environment, "name", None)
        served = declared if isinstance(declared, str) and declared else target
    else:
        environment = _instance(spec, _entry_point(spec, target))
    if equals:
        served = alias
    if not _NAME.fullmatch(served):
        raise EnvironmentLoadError(
            spec,
            f"{served!r} is no name to serve it under",
            f"use NAME=SPEC with a name of letters, digits and _.:/- (at most 128, pattern {_NAME.pattern})",
        )
    return served, _checked(spec, environment)


def _built_in(spec: str, built_in: BuiltIn, argument: str | None) -> Any:
    if argument is not None and not (built_in.takes_argument and argument):
        raise EnvironmentLoadError(
            spec, f"it takes no argument {argument!r}", "leave out the colon and what follows"
        )
    arguments = () if argument is None else (argument,)
    factory = _resolve(spec, built_in.target)
    try:
        return factory(*arguments)
    except ImportError as error:
        if not built_in.extra:
            raise EnvironmentLoadError(spec, str(error), "repair the installation of envtrio") from error
        raise EnvironmentLoadError(
            spec, f"its package is not installed ({error})", f"run: pip install 'envtrio[{built_in.extra}]'"
        ) from error
    except ValueError as error:
        next_step = "correct what follows the colon, or the file that it names"
        raise EnvironmentLoadError(spec, str(error), next_step) from error


def _entry_point(spec: str, name: str) -> Any:
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted({*BUILT_INS, *found}))
        raise EnvironmentLoadError(
            spec,
            f"no built-in environment and no entry point of {ENTRY_POINT_GROUP!r} is named {name!r}",
            f"use one of {known}, or module:attribute",
        )
    return _attempt(spec, f"entry point {found[name].value!r}", found[name].load)


def _resolve(spec: str, target: str) -> Any:
    if not _MODULE_ATTRIBUTE.fullmatch(target):
        raise EnvironmentLoadError(
            spec,
            f"{target!r} is not of the form module:attribute",
            "write it like my_package.envs:MyEnvironment",
        )
    module_name, _, path = target.partition(":")
    found = _attempt(spec, f"module {module_name!r}", lambda: importlib.import_module(module_name))
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError as error:
            close = get_close_matches(attribute, dir(found), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "correct what follows the colon"
            raise EnvironmentLoadError(spec, str(error), hint) from error
    return found


def _instance(spec: str, found: Any) -> Any:
    """What `found` serves: an instance as it is, of a class or a factory what calling it returns."""
    if inspect.isclass(found) or (callable(found) and not hasattr(found, "run")):
        if inspect.iscoroutinefunction(found):
            raise EnvironmentLoadError(spec, "its factory is a coroutine function", "make it a plain one")
        return _attempt(spec, f"calling {getattr(found, '__qualname__', found)!r}", found)
    return found


def _attempt(spec: str, what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # user code may fail as it likes; only Ctrl-C passes
        kind = type(error).__name__
        next_step = (
            "install it, or add its directory to PYTHONPATH"
            if isinstance(error, ImportError)
            else "correct it, or call it yourself to see the whole traceback"
        )
        raise EnvironmentLoadError(spec, f"{what} failed ({kind}: {error})", next_step) from error


def _checked(spec: str, environment: Any) -> Environment:
    run = getattr(environment, "run", None)
    if not inspect.iscoroutinefunction(run):
        found = "has no method run" if run is None else "has a run that is no coroutine function"
        raise EnvironmentLoadError(spec, f"{type(environment).__name__} {found}", _DEFINE_RUN)
    try:
        inspect.signature(run).bind(None)
    except TypeError as error:
        raise EnvironmentLoadError(
            spec, f"its run does not take one context ({error})", _DEFINE_RUN
        ) from error
    validate = getattr(environment, "validate", None)
    if validate is not None and (not callable(validate) or inspect.iscoroutinefunction(validate)):
        raise EnvironmentLoadError(
            spec, "its validate is no plain method", "define: def validate(self, task) -> None, or drop it"
        )
    checked: Environment = environment
    return checked

"""The models that this worker's runs may ask."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Final

from env_worker.domain import TRAINING_ARRAY_FIELDS
from env_worker.model.allow_list import AllowList, base_url
from env_worker.model.dialects.base import EngineOptions
from env_worker.model.engine import Engine, key_in
from env_worker.model.engine_model import EngineModel
from env_worker.model.simulated import SIMULATED, SimulatedModel
from env_worker.model_settings import is_variable
from env_worker.setting import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from env_worker.model.allow_list import BaseUrl
    from env_worker.model.base import ModelClient
    from env_worker.model_settings import ModelSettings

logger = logging.getLogger(__name__)

DIALECTS: Final = ("openai-chat", "vllm-chat", "vllm-completions", "vllm-generate", "sglang-chat")
ENGINE_CLIENT: Final = "env_worker.model.http"
"""Needs the extra, and is not imported where no engine is asked."""
_SHOWN: Final = 80
"""Characters of a value that came over the wire."""
_ALIASES: Final = {
    "model.url": "endpoint or --endpoint",
    "model.dialect": "dialect or --dialect",
    "model.api_key_variable": "key_variable or --key-variable",
}
"""What a caller may know the request's fields by."""
_WITHOUT_ENDPOINT: Final = "leave it out, or name the endpoint that it is for"


class EndpointNotAllowedError(Exception):
    """A run asks for a model that this worker must not, or cannot, ask.

    `field` is that of the request, `value` what it held, cut, and without what may be a secret: this goes
    into logs. `next_step` is for what no operator needs be asked about.
    """

    def __init__(
        self, field: str, value: str, why: str, next_step: str = "leave it out, or ask the worker's operator"
    ) -> None:
        self.field = field
        self.value = _shown(field, value)[:_SHOWN]
        alias = f" ({_ALIASES[field]} in env_client)" if field in _ALIASES else ""
        super().__init__(f"{field}{alias} is {self.value!r}, but {why}; {next_step}")


class Engines:
    """Gives each run its model: the engine it names, the worker's own, or the simulation.

    Only endpoints and key variables on the worker's lists are used, the operator's own included: or any
    client could send any secret of the worker anywhere.

    SettingsError if an endpoint or a dialect of the settings is none, or the package for engines is missing.
    """

    def __init__(self, settings: ModelSettings) -> None:
        self._settings: Final = settings
        self._simulated: Final = SimulatedModel(seed=settings.seed, accuracy=settings.accuracy)
        self._options: Final = EngineOptions(
            arrays=frozenset(settings.model_arrays),
            routing_shape=settings.routing_shape,
            experts=settings.model_experts,
            logprobs_mode=settings.model_logprobs_mode,
        )
        assert self._options.arrays <= set(TRAINING_ARRAY_FIELDS), "the settings were checked"
        own_key = () if settings.model_key_variable is None else (settings.model_key_variable,)
        self._key_variables: Final = frozenset((*own_key, *settings.allow_key_variable))
        own = None if settings.model_url is None else _own_url("--model-url", settings.model_url)
        self._own: Final = own
        try:
            self._allowed: Final = AllowList(settings.allow_endpoint)
        except ValueError as error:
            raise SettingsError(f"--allow-endpoint: {error}") from error
        if settings.model_dialect not in DIALECTS:
            raise SettingsError(
                f"--model-dialect is {settings.model_dialect!r}; choose one of {', '.join(DIALECTS)}"
            )
        if own is not None or len(self._allowed):
            self._check_start()
            try:
                # Now, since it takes a second: not while the environments' loop has runs to serve.
                importlib.import_module(ENGINE_CLIENT)
            except ImportError as error:
                raise SettingsError(
                    "--model-url and --allow-endpoint need the package openai, which is not installed "
                    f"({error}); run: pip install 'envtrio[engines]'"
                ) from error

    @property
    def default(self) -> ModelClient:
        """The model of a run that names none."""
        if self._own is None:
            return self._simulated
        settings = self._settings
        variable = settings.model_key_variable or ""
        return self._made(Engine(str(self._own), settings.model or "", settings.model_dialect, {}, variable))

    def model_for(
        self,
        *,
        url: str = "",
        model: str = "",
        dialect: str = "",
        headers: Mapping[str, str] | None = None,
        key_variable: str = "",
    ) -> ModelClient:
        """The model that a run asks for, by the fields of its request; what is empty is the worker's own.

        EndpointNotAllowedError naming the field.
        """
        if not url and (model == SIMULATED or self._own is None):
            return self._simulation(model, dialect, key_variable)
        where = self._own
        if url:
            where = self._endpoint(url)
        assert where is not None
        own = where == self._own
        name = model or self._settings.model
        if not name:
            raise EndpointNotAllowedError(
                "model.model", model, "this worker has no default model to ask there", "name one"
            )
        variable = key_variable or (self._settings.model_key_variable if own else "") or ""
        self._check_variable(variable, own=own)
        if (chosen := dialect or self._settings.model_dialect) not in DIALECTS:
            raise EndpointNotAllowedError(
                "model.dialect", dialect, f"this worker speaks {', '.join(DIALECTS)}", "name one of these"
            )
        return self._made(Engine(str(where), name, chosen, dict(headers or {}), variable))

    def _check_start(self) -> None:
        """SettingsError if the worker's own key is not there; a word in the log on what is known now to go
        wrong later."""
        settings = self._settings
        if (name := settings.model_key_variable) is not None:
            try:
                key_in(name)
            except LookupError as error:
                raise SettingsError(f"--model-key-variable is {name}, but {error}") from error
        for name in settings.allow_key_variable:
            try:
                key_in(name)
            except LookupError as error:
                logger.warning("--allow-key-variable: %s; runs that ask for it are refused", error)
        if self._own is None:
            return
        if settings.model_dialect == "openai-chat":
            logger.warning(
                "--model-dialect is openai-chat: %s gives text alone, no token ids, log-probabilities or "
                "training arrays; choose one of %s where the engine is one of those",
                self._own, ", ".join(DIALECTS[1:]),
            )  # fmt: skip
        if (
            settings.model_dialect == "sglang-chat"
            and "routed_experts" in settings.model_arrays
            and settings.model_routing_shape is None
        ):
            raise SettingsError(
                "--model-arrays names routed_experts, and sglang-chat gives its rows without a shape; give "
                "--model-routing-shape LAYERSxTOP_K, e.g. 48x8"
            )

    def _simulation(self, model: str, dialect: str, key_variable: str) -> SimulatedModel:
        if model not in ("", SIMULATED):
            raise EndpointNotAllowedError(
                "model.model", model, f"this worker has no endpoint to ask, only its simulation {SIMULATED!r}"
            )
        if key_variable:
            raise EndpointNotAllowedError(
                "model.api_key_variable", key_variable, "no endpoint is asked", _WITHOUT_ENDPOINT
            )
        if dialect:
            raise EndpointNotAllowedError("model.dialect", dialect, "no endpoint is asked", _WITHOUT_ENDPOINT)
        return self._simulated

    def _endpoint(self, url: str) -> BaseUrl:
        try:
            where = base_url(url)
        except ValueError as error:
            raise EndpointNotAllowedError("model.url", url, f"{error}", "mend it") from error
        if where != self._own and where not in self._allowed:
            others = f"{len(self._allowed)} entries" if len(self._allowed) else "no entries"
            beside = "" if self._own is None else " beside its --model-url"
            raise EndpointNotAllowedError(
                "model.url",
                url,
                f"it is not on this worker's list of endpoints (--allow-endpoint: {others}{beside}), which "
                "are base URLs with their path, e.g. http://engine:8000/v1",
            )
        return where

    def _check_variable(self, name: str, *, own: bool) -> None:
        """The worker's own key goes to its own URL, others to any that is allowed."""
        settings = self._settings
        if not name:
            return
        if name not in settings.allow_key_variable and not (own and name == settings.model_key_variable):
            raise EndpointNotAllowedError(
                "model.api_key_variable",
                name,
                "it is not on this worker's list of key variables for that endpoint (--allow-key-variable); "
                "it is the name of a variable, and never the key",
            )
        try:
            key_in(name)
        except LookupError as error:
            raise EndpointNotAllowedError("model.api_key_variable", name, str(error)) from error

    def _made(self, engine: Engine) -> ModelClient:
        return EngineModel(
            engine,
            self._options,
            timeout_seconds=self._settings.model_timeout_seconds,
            retries=self._settings.model_retries,
            key_variables=self._key_variables,
        )


def _shown(field: str, value: str) -> str:
    if field == "model.api_key_variable" and not (is_variable(value) and value.isupper()):
        return f"{value[:3]}..."  # maybe a key, that somebody has put in the place of a name
    if field == "model.url" and "@" in value:
        return f"...@{value.rpartition('@')[2]}"  # before it stand a user and a password
    return value


async def close_connections() -> None:
    """Close the running loop's connections to engines, where it has any: for its end."""
    if (http := sys.modules.get(ENGINE_CLIENT)) is not None:
        await http.close_clients()


def _own_url(flag: str, text: str) -> BaseUrl:
    try:
        return base_url(text)
    except ValueError as error:
        raise SettingsError(f"{flag} is {text[:200]!r}: {error}") from error

"""Several served models by name, each with its own settings, and how a setting's value is read."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from galley.errors import SettingsError
from galley.settings.cache import ModelSettings
from galley.settings.engine import EngineSettings
from galley.settings.fields import by_field, field_names, setting_types
from galley.settings.values import read

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class NamedModel:
    """One of several served models: its name in the API, and the engine settings given for it alone."""

    name: str
    own: Mapping[str, Any]
    on_request: bool = False
    """Whether it is loaded on its first request, whatever ``load_on_request`` says."""


def named_models(arguments: Sequence[str]) -> tuple[NamedModel, ...]:
    """Parse models given as ``NAME=MODEL``, each followed by its ``NAME.SETTING=VALUE`` arguments.

    Raises:
        SettingsError: an argument has another form, or a name is given twice.
    """
    models: dict[str, dict[str, object]] = {}
    for argument in arguments:
        left, equals, value = argument.partition("=")
        name, dot, setting = left.rpartition(".")
        if not equals:
            raise SettingsError(
                f"{argument!r} has no name: of several models each is NAME=MODEL, like chat={argument}"
            )
        if dot and name in models:
            models[name][setting.replace("-", "_")] = value
        elif left in models:
            raise SettingsError(f"two models have the name {left!r}")
        else:
            models[left] = {"model": value}
    for name, own in models.items():
        _check_given(name, own)
    return _named(models, source="command line")


def _check_given(name: str, own: Mapping[str, object]) -> None:
    """Raise SettingsError if the model is an empty text, which an unset shell variable leaves."""
    if own.get("model") == "":
        raise SettingsError(
            f"models: the model of {name} is empty; for the demo model, write galley-demo"
        )


def _named(models: Mapping[str, Mapping[str, object]], *, source: str) -> tuple[NamedModel, ...]:
    for name in models:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{source}: {name!r} is not a name for a model: use letters, digits and . _ - (a "
                f"folder with = in its path needs a name before it)"
            )
    return tuple(
        NamedModel(name, convert(ModelSettings, own, source=f"{source}: models: {name}"))
        for name, own in models.items()
    )


def _models(value: object, *, source: str) -> tuple[NamedModel, ...]:
    """Parse models given as on the command line, or in YAML as name -> model or name -> settings."""
    if isinstance(value, str):
        return named_models(value.split())
    if not isinstance(value, dict):
        raise SettingsError(f"{source}: models must map names to models, got {value!r}")
    models: dict[str, dict[str, object]] = {}
    for name, own in value.items():
        if own is None:
            models[str(name)] = {"model": ""}
            continue
        if isinstance(own, str):
            own = {"model": own}
        if not isinstance(own, dict):
            raise SettingsError(
                f"{source}: models: {name}: expected a model or a mapping of settings, got {own!r}"
            )
        models[str(name)] = {str(k).replace("-", "_"): v for k, v in own.items()}
        _check_given(str(name), models[str(name)])
    return _named(models, source=source)


def convert(
    cls: type[EngineSettings], given: Mapping[str, object], *, source: str
) -> dict[str, Any]:
    """Return settings keyed by field name, with values of the declared types.

    Args:
        cls: the class that declares the settings.
        given: either name of a setting -> value, from text or YAML.
        source: where they were given, for error messages.

    Raises:
        SettingsError: there is no such setting, one is given by two names, or a value is not of its type.
    """
    declared = {f.name: f for f in dataclasses.fields(cls)}
    kinds = setting_types(cls)
    spelled = {field: name for name, field in field_names(cls).items() if name in given}
    return {
        field: _value(
            kinds[field], declared[field], value, source=source, name=spelled.get(field, field)
        )
        for field, value in by_field(cls, given, source=source).items()
    }


def _value(
    kind: object, declared: dataclasses.Field[Any], value: object, *, source: str, name: str
) -> object:
    if declared.name == "models":
        return _models(value, source=source)
    if declared.name == "sampling_defaults" and isinstance(value, dict):
        value = [f"{key}={number}" for key, number in value.items()]
    if declared.name == "engine_options" and isinstance(value, dict):
        value = json.dumps(value, default=str)
    if isinstance(value, str):
        value = declared.metadata["spellings"].get(value, value)
    try:
        return read(kind, value)
    except ValueError as error:
        raise SettingsError(f"{source}: {name}: {error}") from None

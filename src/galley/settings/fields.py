"""How settings are declared, and what is known of a declared one: names, types, ranges."""

import typing
from collections.abc import Mapping
from dataclasses import field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from galley.errors import SettingsError
from galley.settings.values import fault

if TYPE_CHECKING:
    from galley.settings.engine import EngineSettings

T = TypeVar("T")


def setting(
    default: T,
    group: str,
    help: str,
    *,
    common: bool = False,
    secret: bool = False,
    alias: str = "",
    spellings: Mapping[str, str] | None = None,
) -> T:
    """Declare the field of a setting.

    Args:
        default: value when none is given.
        group: group of the command's help that lists it.
        help: description for users.
        common: whether ``--help`` lists it; ``--help-all`` lists all.
        secret: whether it stays out of the repr, which ends up in logs and tracebacks.
        alias: another name by which the setting is accepted in flags, files and variables.
        spellings: alternative spelling of a value -> the value.
    """
    about = {"group": group, "help": help, "common": common, "alias": alias}
    metadata = about | {"spellings": spellings or {}}
    return field(default=default, repr=not secret, metadata=metadata)


def respell(settings: "EngineSettings") -> None:
    """Replace alternative spellings of values with the values themselves."""
    for declared in fields(settings):
        value, spellings = getattr(settings, declared.name), declared.metadata["spellings"]
        if isinstance(value, str) and value in spellings:
            object.__setattr__(settings, declared.name, spellings[value])


def check_values(settings: "EngineSettings") -> None:
    """Raise SettingsError for a value outside of its setting's range or choices."""
    cls: Any = type(settings)  # mypy does not take the type of a dataclass for hashable
    kinds = _declared_types(cls)
    for declared in fields(settings):
        wrong = fault(kinds[declared.name], getattr(settings, declared.name))
        if wrong is not None:
            raise SettingsError(f"{declared.name}{wrong}")


@cache
def _declared_types(cls: type[Any]) -> dict[str, Any]:
    """Return a mapping from setting name to its type, with its range."""
    return typing.get_type_hints(cls, include_extras=True)


def setting_types(cls: "type[EngineSettings]") -> dict[str, Any]:
    """Return a mapping from setting name to its type, without its range."""
    return typing.get_type_hints(cls)


def field_names(cls: "type[EngineSettings]") -> dict[str, str]:
    """Return a mapping from each name that a setting may be given by to its field."""
    return {name: f.name for f in fields(cls) for name in (f.name, f.metadata["alias"]) if name}


def by_field(
    cls: "type[EngineSettings]", given: Mapping[str, Any], *, source: str
) -> dict[str, Any]:
    """Return settings keyed by field name, from settings given by any of their names.

    Args:
        cls: the class that declares the settings.
        given: name -> value.
        source: where they were given, for error messages.

    Raises:
        SettingsError: a name matches no setting, or a setting is given by two names.
    """
    names, found = field_names(cls), dict[str, str]()
    for name in given:
        if name not in names:
            known = ", ".join(sorted(f.name for f in fields(cls)))
            raise SettingsError(f"{source}: unknown setting {name!r}; known: {known}")
        if (other := found.setdefault(names[name], name)) != name:
            raise SettingsError(
                f"{source}: {other} and {name} are the same setting; leave out one of them"
            )
    return {field_name: given[name] for field_name, name in found.items()}

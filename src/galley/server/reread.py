"""Settings that changed while the server runs: some take effect at once, others need a restart."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from galley.settings.config import Settings
from galley.settings.engine import EngineSettings

LIVE: Final = frozenset({"log_level", "drain_seconds"})
"""Settings of the server that take effect at once."""

_HIDDEN: Final = frozenset({"api_key", "api_key_file", "admin_key"})
"""Settings that the server forgets once it has digests; the key file is reread separately."""

_OF_ENGINES: Final = frozenset(f.name for f in dataclasses.fields(EngineSettings)) - {"engine"}
"""Settings that a model gets with a new engine process."""


@dataclass(frozen=True)
class Changes:
    """The difference between the served settings and the current ones of the sources.

    Attributes:
        live: settings that take effect at once.
        models: model name -> its engine settings that changed.
        restart: names that need a restart, such as ``port`` or ``models.NAME``.
    """

    live: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    restart: tuple[str, ...]


def changes(served: Settings, models: Mapping[str, Settings], wanted: Settings) -> Changes:
    """Compare the served settings with those that the sources give now.

    Args:
        served: the server's settings.
        models: model name in the API -> the settings that it is served with.
        wanted: as the sources give them now.
    """
    differ = _differences(served, wanted) - _HIDDEN
    restart = differ - LIVE - _OF_ENGINES - {"models"}
    after = {model.served_model_name: model for model in wanted.each_model()}
    restart |= {f"models.{name}" for name in after if name and name not in models}
    own: dict[str, dict[str, Any]] = {}
    for name, old in models.items():
        new = after.get(old.served_model_name)
        if new is None:
            restart.add(f"models.{name}")
            continue
        changed = _differences(old, new)
        if not old.served_model_name and "model" in changed:
            # Its name in the API comes from its folder, and would change.
            changed.discard("model")
            restart.add("model")
        if engine := changed & _OF_ENGINES:
            own[name] = {field: getattr(new, field) for field in sorted(engine)}
        restart |= changed - _OF_ENGINES - LIVE - _HIDDEN
    live = {name: getattr(wanted, name) for name in sorted(differ & LIVE)}
    return Changes(live, own, tuple(sorted(restart)))


def _differences(one: Settings, other: Settings) -> set[str]:
    return {
        field.name
        for field in dataclasses.fields(Settings)
        if getattr(one, field.name) != getattr(other, field.name)
    }

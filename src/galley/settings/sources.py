"""Settings as files and environment variables give them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from galley.errors import SettingsError
from galley.settings.engine import EngineSettings
from galley.settings.fields import by_field, field_names
from galley.settings.named_models import convert

# Kubernetes sets GALLEY_PORT=tcp://10.0.0.1:8000 in every pod of a namespace that has a Service "galley".
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")


def from_file(cls: type[EngineSettings], file: Path | None) -> dict[str, Any]:
    """Return the settings of a file; without one, of ``galley.yaml``, if there is one."""
    path = Path("galley.yaml") if file is None else file
    if not path.is_file():
        if file is not None:
            raise SettingsError(f"settings file {path} does not exist")
        return {}
    from galley.settings.file import read_settings_file

    content = read_settings_file(path)
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must contain a mapping of setting names to values")
    return convert(cls, {str(k).replace("-", "_"): v for k, v in content.items()}, source=str(path))


def variables(cls: type[EngineSettings]) -> dict[str, str]:
    """Return a mapping from the environment variable of each setting to a name of the setting."""
    return {f"GALLEY_{name.upper()}": name for name in field_names(cls)}


def from_environ(cls: type[EngineSettings], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the ``GALLEY_*`` variables."""
    known = variables(cls)
    given = {
        variable: text
        for variable, text in environ.items()
        if variable in known and not (variable.endswith("PORT") and _SERVICE_LINK.match(text))
    }
    by_field(cls, {known[variable]: text for variable, text in given.items()}, source="variables")
    found: dict[str, Any] = {}
    for variable, text in given.items():
        found |= convert(cls, {known[variable]: text}, source=variable)
    return found

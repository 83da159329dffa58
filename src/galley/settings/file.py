"""Reader of ``galley.yaml``; mistakes are errors that name the line."""

from pathlib import Path
from typing import Any, Final

import yaml

from galley.errors import SettingsError

MAX_BYTES: Final = 1_000_000


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without duplicate keys and aliases, which settings never need and mistakes produce."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(
                None, None, f"the alias *{event.anchor}; write out the value", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            # A setting can be spelled with a hyphen or an underscore.
            name = str(key.value).replace("-", "_")
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} stands here a second time", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def read_settings_file(path: Path) -> Any:
    """Return the contents of a YAML file; an empty mapping for an empty file.

    Raises:
        SettingsError: it cannot be read, is not YAML, is nested too deeply, or repeats a key of a mapping.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise SettingsError(
                f"{path} is longer than {MAX_BYTES} bytes, the most that a settings file may have"
            )
        return yaml.load(data.decode("utf-8"), _Loader) or {}  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise SettingsError(
            f"{path} nests lists or mappings too deeply for a settings file"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise SettingsError(
            f"{path} is not readable YAML{where}: {error.problem or error.context}"
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # including an invalid date or number
        raise SettingsError(f"{path} is not readable YAML: {error}") from error

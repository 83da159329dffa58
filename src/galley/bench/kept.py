"""Figures of long runs, kept in a file so that an interrupted run continues where it was."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from galley import __version__
from galley.errors import SettingsError
from galley.files import complete_or_absent


class Kept(Protocol):
    """The contents of a file of results.

    Attributes:
        version: of its format.
        galley: version that measured it.
        conditions: whatever else changes the figures.
    """

    version: int
    galley: str
    conditions: dict[str, str]


K = TypeVar("K", bound=Kept)


def read_kept(
    file: Path, kind: type[K], version: int, conditions: Mapping[str, str], command: str
) -> K | None:
    """Return what a file holds; None if there is no file.

    Args:
        file: written by :func:`keep`.
        kind: the struct in it.
        version: of its format now.
        conditions: those of now.
        command: for messages, such as "galley lab".

    Raises:
        SettingsError: it holds something else, or figures of other conditions or of another version.
    """
    if not file.exists():
        return None
    remedy = "name another file with --results, or remove it"
    try:
        found = msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f"{file} has no results of {command}: {error}; {remedy}") from error
    then = {"galley": found.galley, "format": str(found.version), **found.conditions}
    now = {"galley": __version__, "format": str(version), **conditions}
    other = [
        f"{name} {then.get(name)!r}, now {now[name]!r}"
        for name in now
        if then.get(name) != now[name]
    ]
    if other:
        raise SettingsError(
            f"{file} has figures of other conditions ({'; '.join(other)}); {remedy}"
        )
    return found


def keep(file: Path, results: Kept) -> None:
    """Write the results to a file, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    with complete_or_absent(file) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))

"""The findings of a check, and the host that it examines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from galley.settings.config import Settings

Level = Literal["ok", "note", "warning", "problem"]

LEVELS: Final[tuple[Level, ...]] = ("ok", "note", "warning", "problem")
"""From good to bad. A note is worth knowing, but needs no action."""

EXIT_CODES: Final[Mapping[Level, int]] = {"ok": 0, "note": 0, "warning": 1, "problem": 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check.

    Attributes:
        check: its name, the same on every machine.
        level: how bad it is.
        found: the observed state, with the figures.
        cost: its cost; empty where it costs nothing.
        remedy: what to do; empty where there is nothing to do.
        figures: those of ``found``, for programs; units are in their names.
    """

    check: str
    level: Level
    found: str
    cost: str = ""
    remedy: str = ""
    figures: dict[str, float | str] = {}


def worst(findings: Sequence[Finding]) -> Level:
    """Return the worst level; "ok" without findings."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


@dataclass(frozen=True, slots=True)
class Host:
    """The machine as its kernel describes it; ``root`` is ``/``, or a copy of another machine's files."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Return a file's text without space at its ends; empty if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return ""

    def paths(self, folder: str, pattern: str) -> list[Path]:
        """Return the matches in a folder, sorted; nothing if there is no such folder."""
        return sorted((self.root / folder.lstrip("/")).glob(pattern))

    @property
    def cgroup(self) -> Path:
        """Root of the control groups."""
        return self.root / "sys/fs/cgroup"

    @property
    def membership(self) -> Path:
        """The file that names this process's control groups."""
        return self.root / "proc/self/cgroup"


@dataclass(frozen=True, slots=True)
class Context:
    """The subject of an examination.

    Attributes:
        settings: of the server that is to run.
        host: the machine.
    """

    settings: Settings
    host: Host

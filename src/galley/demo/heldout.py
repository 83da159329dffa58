"""The held-out sets of the bundled language model, as `galley eval demo` reads them.

Set 1 uses training wordings with held-out names and numbers; set 2 uses held-out wordings, too. Each set is
a fixed file; the recipe (`recipes/assistant` in the source) creates both and proves these properties.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from . import DATA_DIR

SETS = (1, 2)

Task = Literal["ticket", "queue", "redact", "glossary", "chat"]
"""The model's tasks; the held-out sets contain the first three."""


class Message(TypedDict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Item:
    """One held-out conversation with its only correct answer, and the clauses and facts it is made of."""

    set: int
    task: Task
    messages: list[Message]
    answer: str
    clauses: tuple[str, ...]
    facts: tuple[str, ...]


def path(number: int, folder: Path = DATA_DIR) -> Path:
    """Return the path of a set's file."""
    return folder / f"heldout_{number}.jsonl.gz"


def read(number: int, folder: Path = DATA_DIR) -> list[Item]:
    """Read a set from its file.

    Raises:
        ValueError: a line has an unknown task.
    """
    items = []
    for line in gzip.decompress(path(number, folder).read_bytes()).decode().splitlines():
        raw: dict[str, Any] = json.loads(line)
        if raw["task"] not in get_args(Task):
            raise ValueError(f"unknown task {raw['task']!r} in {path(number, folder)}")
        raw["clauses"], raw["facts"] = tuple(raw["clauses"]), tuple(raw["facts"])
        items.append(Item(**raw))
    return items

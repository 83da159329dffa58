"""Generates the held-out sets, and checks that training never sees them.

Set 1 uses training wordings with held-out names and numbers; set 2 uses held-out wordings too.
The files are fixed: `python -m recipes.assistant.heldout` writes them again, byte for byte.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import fields
from pathlib import Path

from galley.demo import DATA_DIR
from galley.demo.heldout import SETS, Item, Message, path, read

from .generator import CALL_TASKS, SYSTEM, alternatives, call_turn
from .vocabulary import INTENTS, Source, is_held_out
from .wordings import HELD_OUT, TRAINING, clauses_of

PER_TASK = 100
_PARTICLES = {"van", "de", "von", "da"}


def make(number: int) -> list[Item]:
    """Return held-out set 1 or 2: `PER_TASK` items of each call task, intents in turn."""
    source = Source(random.Random(7000 + number), held_out=True)
    wordings = TRAINING if number == 1 else HELD_OUT
    items: list[Item] = []
    for task in CALL_TASKS:
        for place in range(PER_TASK):
            turn = call_turn(task, source, wordings, INTENTS[place % len(INTENTS)])
            messages: list[Message] = [
                {"role": "system", "content": source.rng.choice(SYSTEM[task])},
                {"role": "user", "content": turn.text},
            ]
            items.append(Item(number, task, messages, turn.answer, turn.clauses, turn.facts))
    return items


def write(folder: Path = DATA_DIR) -> None:
    """Write both sets, one JSON object per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in SETS:
        lines = (
            json.dumps({f.name: getattr(item, f.name) for f in fields(Item)}, ensure_ascii=False)
            for item in make(number)
        )
        text = "\n".join(lines) + "\n"
        path(number, folder).write_bytes(gzip.compress(text.encode(), mtime=0))


def violations(items: list[Item]) -> list[str]:
    """Return violations of the rule that training never saw these items; empty if there are none.

    Every word of a name and every number must belong to the held-out side, which training never
    uses; in set 2 no clause may be one that the training grammar can produce.
    """
    known = _training_patterns()
    found: list[str] = []
    for item in items:
        for fact in item.facts:
            found += [
                f"set {item.set}: {part!r} may occur in training"
                for part in _parts(fact)
                if not is_held_out(part)
            ]
        if item.set == 2:
            found += [
                f"set 2: training can say {clause!r}"
                for clause in item.clauses
                if any(pattern.fullmatch(clause.lower()) for pattern in known)
            ]
    return found


def _parts(fact: str) -> list[str]:
    """Return the words of a name, or a number as a whole."""
    if any(ch.isdigit() for ch in fact):
        return [fact]
    return [word for word in re.split(r"[ -]", fact) if word not in _PARTICLES]


def _training_patterns() -> list[re.Pattern[str]]:
    return [re.compile(_pattern(clause).lower()) for clause in clauses_of(TRAINING)]


def _pattern(template: str) -> str:
    """Return a regular expression that matches exactly what `expand` can make of a clause."""
    out, at = "", 0
    while at < len(template):
        if template[at] == "[":
            options, at = alternatives(template, at)
            out += "(?:" + "|".join(_pattern(option) for option in options) + ")"
        else:
            out += r"\s*" if template[at] == " " else re.escape(template[at])
            at += 1
    return out


if __name__ == "__main__":
    write()
    for number in SETS:
        problems = violations(read(number))
        print(f"set {number}: {len(read(number))} items, {len(problems)} violations")
        print("\n".join(problems[:20]))

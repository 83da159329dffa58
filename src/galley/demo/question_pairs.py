"""Pairs of questions with and without the same answer, made from wordings.

Half of the pairs are two wordings of one text. The others differ in what vectors hardly see: a number, a
product, a city, a person or a date; who does what to whom; a negation, an opposite or another action; and
some are other texts about the same thing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .questions import QUESTIONS, SLOTS, Question

KINDS = ("other values", "reversed roles", "negations and opposites", "other questions")
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts; ``kind``: "paraphrases", or what differs; ``number``: the first text's."""

    a: str
    b: str
    same: bool
    kind: str
    number: int


def pairs(
    count: int,
    seed: int,
    numbers: tuple[int, ...] | None = None,
    texts: tuple[Question, ...] = QUESTIONS,
) -> list[Pair]:
    """Return distinct pairs, half of which mean the same.

    Args:
        count: the number of pairs.
        seed: of the choices.
        numbers: of the texts to use; None: all.
        texts: questions, or answers.
    """
    rng = random.Random(seed)
    numbers = tuple(range(len(texts))) if numbers is None else numbers
    found: dict[tuple[str, str], Pair] = {}
    for kind in _kinds(count):
        for _ in range(_TRIES):
            pair = _pair(rng, rng.choice(numbers), kind, numbers, texts)
            if pair is None or pair.a == pair.b:
                continue
            key = (min(pair.a, pair.b), max(pair.a, pair.b))
            if key not in found:
                found[key] = pair
                break
    return list(found.values())


def _kinds(count: int) -> Iterator[str]:
    for number in range(count):
        yield "paraphrases" if number % 2 else KINDS[number // 2 % len(KINDS)]


def _pair(
    rng: random.Random,
    number: int,
    kind: str,
    numbers: tuple[int, ...],
    texts: tuple[Question, ...],
) -> Pair | None:
    question = texts[number]
    values = _values(rng)
    first, second = rng.sample(question.wordings, 2)
    other = values
    if kind == "other values":
        slot = _changed_slot(rng, question)
        if slot is None:
            return None
        other = values | {slot: rng.choice(SLOTS[slot.rstrip("2")])}
        # The wording may be the same: then only the value differs.
        second = rng.choice(question.wordings)
        if other[slot] in (values[slot], values.get(f"{slot}2"), values.get(slot.rstrip("2"))):
            return None
    elif kind == "reversed roles":
        doubled = [name for name in SLOTS if "{" + name + "2}" in first]
        if not doubled:
            return None
        [name] = doubled
        other = values | {name: values[f"{name}2"], f"{name}2": values[name]}
        second = rng.choice(question.wordings)
    elif kind == "negations and opposites":
        if not question.opposites:
            return None
        second = rng.choice(question.opposites)
    elif kind == "other questions":
        second = rng.choice(texts[rng.choice([n for n in numbers if n != number])].wordings)
    a, b = first.format(**values), second.format(**other)
    return Pair(a, b, same=kind == "paraphrases", kind=kind, number=number)


def _values(rng: random.Random) -> dict[str, str]:
    values = {}
    for name, choices in SLOTS.items():
        values[name], values[f"{name}2"] = rng.sample(choices, 2)
    return values


def _changed_slot(rng: random.Random, question: Question) -> str | None:
    text = question.wordings[0]
    used = [slot for name in SLOTS for slot in (name, f"{name}2") if "{" + slot + "}" in text]
    return rng.choice(used) if used else None

"""Pairs of texts with the same meaning, and the documents to search: queues and glossary entries."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from galley.demo import heldout

from ..assistant.generator import Call, Ticket, compose, marked
from ..assistant.glossary import QUESTIONS, TERMS, Term
from ..assistant.vocabulary import INTENTS, Source, queue_for
from ..assistant.wordings import TRAINING

QUEUES: dict[str, str] = {
    "billing": "Billing: refunds, wrong or unexpected charges, invoices and payments.",
    "retention": "Retention: customers who want to cancel a contract or leave.",
    "sales": "Sales: upgrades, new plans, faster or better products and their prices.",
    "delivery": "Delivery: parcels and orders that are late, lost or did not arrive.",
    "accounts": "Accounts: moving to a new address, passwords and trouble to log in.",
    "security": "Security: fraud, stolen devices and strangers who use the account.",
    "home support": "Home support: faults of broadband, router, landline, TV and TV box at home.",
    "mobile support": "Mobile support: faults of a mobile plan, SIM card or handset.",
}
"""Queue -> its description."""

DOCUMENTS: dict[str, str] = QUEUES | {term.name: term.answer for term in TERMS}
"""Label -> the text that is to be found."""

HELD_OUT_QUESTIONS = (
    "I keep reading about {}, but nobody says what that is.", "So {}, what's that about?",
    "A colleague mentioned {} today. Meaning?", "Help me understand {}, please.",
    "Which idea stands behind {}?", "I need a short summary of {}.",
    "Why would anyone care about {}?", "give me the basics on {}",
    "My boss wants to hear about {}. What do I say?", "Teach me {}.",
)  # fmt: skip
"""Forms of questions that training never has."""

_CALLERS = 0.5
_INTENTS = (*INTENTS, "fault", "delivery", "fraud", "cancel")
"""As often as makes queues somewhat even."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts with the same meaning. Texts with the same label do not repel each other."""

    first: str
    second: str
    label: str


def pairs(seed: int, whole: float) -> Iterator[Pair]:
    """Yield an endless stream of training pairs for a seed.

    ``whole`` is the share of callers who say more than their problem.
    """
    rng = random.Random(seed)
    source = Source(rng, held_out=False)
    while True:
        yield _of_callers(source, whole) if rng.random() < _CALLERS else _of_the_glossary(rng)


def _of_callers(source: Source, whole: float) -> Pair:
    rng = source.rng
    intent = rng.choice(_INTENTS)
    first, queue = _message(source, intent, whole)
    second, other = QUEUES[queue], queue
    if rng.random() < 0.3:
        second, other = _message(source, intent, whole)
        while other != queue:
            second, other = _message(source, intent, whole)
    return Pair(first, second, queue)


def _message(source: Source, intent: str, whole: float) -> tuple[str, str]:
    """Return a caller's message, or its problem alone, and the queue for it."""
    loose = source.rng.random() < 0.6
    if source.rng.random() < whole:
        text, call = compose(source, TRAINING, intent, loose=loose)
    else:
        call = Call(source, TRAINING, Ticket(intent=intent), loose)
        text = marked(call.say(TRAINING.problem[intent]))
    return text, queue_for(intent, call.ticket.product)


def _of_the_glossary(rng: random.Random) -> Pair:
    term = rng.choice(TERMS)
    if rng.random() < 0.8:
        text = rng.choice(QUESTIONS).format(rng.choice(names(term)))
    else:  # an entry's own text must find it, too
        words = rng.choice(term.answer.split(". ")).split()
        text = " ".join(word for word in words if rng.random() < 0.8) or term.name
    if rng.random() < 0.15:  # whatever the caller's opening
        text = f"{marked(Call(Source(rng, held_out=False), TRAINING).say(TRAINING.chatter))} {text}"
    return Pair(text, term.answer, term.name)


def names(term: Term) -> tuple[str, ...]:
    """Return all names of a term."""
    return (term.name, *term.aliases)


def held_out_callers(number: int) -> list[tuple[str, str]]:
    """Return (message, its queue) of the calls of held-out set 1 or 2 that have a queue."""
    found = []
    for item in heldout.read(number):
        queue = item.answer
        if item.task == "ticket":
            ticket = json.loads(item.answer)
            queue = queue_for(ticket["intent"], ticket["product"])
        if item.task in ("ticket", "queue"):
            found.append((item.messages[-1]["content"], queue))
    return found


def held_out_questions() -> list[tuple[str, str]]:
    """Return (question, label of its entry): every name of every term in every held-out form."""
    return [
        (form.format(name), term.name)
        for term in TERMS
        for name in names(term)
        for form in HELD_OUT_QUESTIONS
    ]

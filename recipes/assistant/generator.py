"""Generates the demo model's examples: callers' messages with the right answers.

Everything is drawn from a `random.Random`, so a seed fixes the text. Standard library only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from galley.demo.heldout import Message, Task

from . import glossary
from .vocabulary import INTENT_PRODUCTS, INTENTS, PRODUCTS, Source, date, queue_for
from .wordings import HELD_OUT, TRAINING, Clauses, Wordings, clauses_of


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation that ends with a user's turn, and the assistant's right answer to it."""

    task: Task
    messages: list[Message]
    answer: str


SYSTEM: dict[str, tuple[str, ...]] = {
    "ticket": (
        "Write the ticket as JSON.",
        "Turn the caller's message into a JSON ticket.",
        "Write a JSON ticket for this call.",
        "Extract the ticket as JSON.",
    ),
    "queue": (
        "Name the queue.",
        "Route the call: name the queue.",
        "Which queue takes this call?",
        "Answer with the queue for this call.",
    ),
    "redact": (
        "Redact card and phone numbers.",
        "Redact the card and phone numbers in the message.",
        "Repeat the message with card and phone numbers redacted.",
        "Replace card numbers by [CARD] and phone numbers by [PHONE].",
    ),
    "glossary": (
        "Answer from the glossary.",
        "Answer questions about inference from the glossary.",
        "Explain the term from the glossary.",
    ),
}

_COUNTS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "fifteen",
    "twenty",
)  # fmt: skip
_FILLERS = ("um", "well", "so", "okay", "look", "right", "you see", "actually", "listen", "er")
_MONEY = {"refund": 0.6, "billing": 0.45, "fraud": 0.45}
_TENSE = {
    **dict.fromkeys(("refund", "billing", "fault", "delivery", "fraud", "login"), "past"),
    **dict.fromkeys(("payment", "cancel", "upgrade", "move"), "future"),
}


def expand(template: str, rng: random.Random) -> str:
    """Choose one alternative at every `[a|b]` of a clause; slots stay as they are."""
    out: list[str] = []
    at = 0
    while at < len(template):
        if template[at] != "[":
            out.append(template[at])
            at += 1
            continue
        options, at = alternatives(template, at)
        out.append(expand(rng.choice(options), rng))
    return " ".join("".join(out).split()).replace(" ,", ",")


def alternatives(template: str, start: int) -> tuple[list[str], int]:
    """Return the alternatives of the bracket at `start`, and the place after its end."""
    options, depth, begin = [], 0, start + 1
    for at in range(start, len(template)):
        char = template[at]
        if char == "[":
            depth += 1
        elif char == "|" and depth == 1:
            options.append(template[begin:at])
            begin = at + 1
        elif char == "]":
            depth -= 1
            if depth == 0:
                options.append(template[begin:at])
                return options, at + 1
    raise ValueError(f"unclosed bracket in clause {template!r}")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message under a task, its right answer, and its parts.

    `clauses` have their slots unfilled; `facts` are the names and numbers that filled them.
    """

    text: str
    answer: str
    clauses: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(slots=True)
class Ticket:
    """What the caller said, as the ticket holds it. `amount` is a JSON number as text."""

    name: str | None = None
    account: str | None = None
    intent: str = ""
    product: str | None = None
    amount: str | None = None
    date: str | None = None
    urgency: str = "normal"

    def json(self) -> str:
        """Compact JSON with the keys always in the same order."""

        def text(value: str | None) -> str:
            return "null" if value is None else f'"{value}"'

        return (
            f'{{"name":{text(self.name)},"account":{text(self.account)},'
            f'"intent":{text(self.intent)},"product":{text(self.product)},'
            f'"amount":{self.amount or "null"},"date":{text(self.date)},'
            f'"urgency":{text(self.urgency)}}}'
        )


_SMALL = frozenset(
    (
        "a", "an", "the", "my", "our", "your", "to", "is", "am", "are", "was", "of", "for", "on",
        "that", "this", "it", "please", "and",
    )
)  # fmt: skip
_ADVERBS = ("really", "just", "also", "still", "again", "now", "please", "simply", "kindly", "then")
_NEVER = frozenset(clause.lower() for clause in clauses_of(HELD_OUT))
_EVERY_CLAUSE = tuple(clauses_of(TRAINING))
_EVERY_WORD = tuple(
    sorted(
        {
            word
            for clause in _EVERY_CLAUSE
            for word in re.split(r"[^\w'{}]+", clause)
            if word.isalpha() and word.islower()
        }
    )
)


def _loosened(skeleton: str, rng: random.Random) -> str:
    """Return a clause with words dropped or replaced, unless that makes a held-out clause.

    Small words are dropped or inserted. In an introduction other words may also be replaced by any word: a
    caller's name is a name however it is introduced.
    """
    words = [word for word in skeleton.split() if word not in _SMALL or rng.random() > 0.12]
    if rng.random() < 0.2:
        words.insert(rng.randint(0, len(words)), rng.choice(_ADVERBS))
    if ("{name}" in skeleton or "{account}" in skeleton) and rng.random() < 0.35:
        for place, word in enumerate(words):
            if word.isalpha() and rng.random() < 0.4:
                words[place] = rng.choice(_EVERY_WORD)
    loose = " ".join(words)
    return skeleton if not words or loose.lower() in _NEVER else loose


@dataclass(slots=True)
class Call:
    """A caller's message, composed clause by clause."""

    source: Source
    wordings: Wordings
    ticket: Ticket = field(default_factory=Ticket)
    loose: bool = False  # whether small words are dropped or inserted, as in speech
    clauses: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    secrets: list[tuple[str, str]] = field(default_factory=list)

    @property
    def rng(self) -> random.Random:
        """Return the shared random source."""
        return self.source.rng

    def say(self, options: Clauses) -> str:
        """Choose an unused clause, fill its slots, and sometimes add a hesitation."""
        skeleton = expand(self.rng.choice(options), self.rng)
        if skeleton in self.clauses:
            return self.say(options)
        self.clauses.append(skeleton)
        if self.loose:
            skeleton = _loosened(skeleton, self.rng)
        text = self.fill(skeleton)
        return f"{self.rng.choice(_FILLERS)}, {text}" if self.rng.random() < 0.03 else text

    def fill(self, skeleton: str) -> str:
        """Fill every slot, and record its value on the ticket."""
        fills: dict[str, Callable[[], str]] = {
            "{name}": self._name,
            "{account}": self._account,
            "{product}": self._product,
            "{amount}": self._amount,
            "{on_past}": lambda: self._date("past", after_on=True),
            "{past}": lambda: self._date("past", after_on=False),
            "{on_future}": lambda: self._date("future", after_on=True),
            "{future}": lambda: self._date("future", after_on=False),
            "{other}": lambda: self._fact(self.source.name()),
            "{order}": lambda: self._fact(self.source.order()),
            "{phone}": lambda: self._secret(self.source.phone(), "[PHONE]"),
            "{card}": lambda: self._secret(self.source.card(), "[CARD]"),
            "{count}": lambda: self.rng.choice(_COUNTS),
        }
        for slot, fill in fills.items():
            while slot in skeleton:
                skeleton = skeleton.replace(slot, fill(), 1)
        return skeleton

    def _name(self) -> str:
        self.ticket.name = self._fact(self.source.name())
        return self.ticket.name

    def _account(self) -> str:
        self.ticket.account = self._fact(self.source.account())
        return self.ticket.account

    def _product(self) -> str:
        if self.ticket.product is None:
            self.ticket.product = self.rng.choice(INTENT_PRODUCTS[self.ticket.intent])
        return self.rng.choice(PRODUCTS[self.ticket.product])

    def _amount(self) -> str:
        said, number = self.source.amount()
        self.ticket.amount = self._fact(number)
        return said

    def _secret(self, text: str, label: str) -> str:
        self.secrets.append((text, label))
        return self._fact(text)

    def _fact(self, text: str) -> str:
        self.facts.append(text)
        return text

    def _date(self, tense: str, *, after_on: bool) -> str:
        after, alone, self.ticket.date = date(self.source, tense)
        return after if after_on else alone


def compose(
    source: Source, wordings: Wordings, intent: str, *, loose: bool = False
) -> tuple[str, Call]:
    """Return a caller's message about `intent`, and the call with its ticket."""
    call = Call(source, wordings, Ticket(intent=intent), loose)
    rng = call.rng
    problem = [call.say(wordings.problem[intent])]
    ticket = call.ticket
    kind = "money" if intent in _MONEY else "payment" if intent == "payment" else "price"
    chance = _MONEY.get(intent, {"payment": 0.5, "upgrade": 0.3, "cancel": 0.15}.get(intent, 0.0))
    if ticket.amount is None and rng.random() < chance:
        problem.append(call.say(wordings.amount[kind]))
    if ticket.date is None and rng.random() < 0.4:
        problem.append(call.say(wordings.date[_TENSE[intent]]))
    if len(problem) == 3 and rng.random() < 0.5:
        problem[1:] = problem[:0:-1]
    parts = [_joined(problem, rng)]
    parts[rng.choice((0, 0, 0, 1)) : 0] = _introduction(call)
    if rng.random() < 0.45:
        ticket.urgency = rng.choice(("high", "low"))
        parts.insert(rng.randint(0, len(parts)), call.say(wordings.urgency[ticket.urgency]))
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        parts.insert(rng.randint(0, len(parts)), call.say(wordings.chatter))
    if rng.random() < 0.6:
        parts.insert(0, call.say(wordings.greeting))
    if rng.random() < 0.45:
        parts.append(call.say(wordings.closing))
    return _spoken(parts), call


def _introduction(call: Call) -> list[str]:
    """Introduce the caller by name, account, both or neither."""
    rng, wordings = call.rng, call.wordings
    roll = rng.random()
    if roll < 0.30:
        return [call.say(wordings.name_account)]
    if roll < 0.62:
        both = [call.say(wordings.name), call.say(wordings.account)]
        if rng.random() < 0.35:
            both.reverse()
        return [_joined(both, rng)]
    if roll < 0.78:
        return [call.say(wordings.name)]
    if roll < 0.90:
        return [call.say(wordings.account)]
    return []


def _joined(clauses: list[str], rng: random.Random) -> str:
    """Join clauses into one sentence or several, without the final punctuation."""
    text = clauses[0]
    for clause in clauses[1:]:
        glue = rng.choice((".", ".", ".", ", ", " and ", ", and "))
        text = f"{marked(text)} {_capital(clause)}" if glue == "." else text + glue + clause
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


_ASKS = re.compile(
    r"(^|[.?,] )((can|could|do|does|am|are|is|will) (I|you|we|there|it|a|my|the|this|someone)\b"
    r"|what(?! I)|where|why|how|which|when (will|is|do|are))[^.?]*$",
    re.IGNORECASE,
)


def marked(text: str) -> str:
    """Capitalize the first letter and end with a full stop or question mark."""
    return _capital(text) + ("?" if _ASKS.search(text) else ".")


def _spoken(parts: list[str]) -> str:
    """Join sentences."""
    return " ".join(marked(part) for part in parts)


def redaction(source: Source, wordings: Wordings, *, loose: bool = False) -> Turn:
    """Return a message with card or phone numbers, and its redacted form."""
    rng = source.rng
    call = Call(source, wordings, Ticket(intent=rng.choice(INTENTS)), loose)
    parts: list[str] = []
    if rng.random() < 0.4:
        parts.append(call.say(wordings.problem[call.ticket.intent]))
    if rng.random() < 0.6:
        options = (wordings.name, wordings.account, wordings.name_account)
        parts.append(call.say(rng.choice(options)))
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        parts.insert(rng.randint(0, len(parts)), call.say(wordings.redact))
    if rng.random() < 0.25:
        parts.insert(rng.randint(0, len(parts)), call.say(wordings.chatter))
    if rng.random() < 0.15:
        parts.append(call.say(wordings.amount["money"]))
    if rng.random() < 0.4 or not parts:
        parts.insert(0, call.say(wordings.greeting))
    if rng.random() < 0.3:
        parts.append(call.say(wordings.closing))
    return _redacted(_spoken(parts), call)


def _redacted(text: str, call: Call) -> Turn:
    answer = text
    for secret, label in sorted(call.secrets, key=lambda pair: -len(pair[0])):
        answer = answer.replace(secret, label)
    return Turn(text, answer, tuple(call.clauses), tuple(call.facts))


def scrambled(source: Source) -> Turn:
    """Return a redaction of meaningless sentences, so that only verbatim copying works.

    Some pieces repeat, so that the words just copied do not always identify the position.
    """
    rng = source.rng
    call = Call(source, TRAINING, Ticket(intent=rng.choice(INTENTS)))
    pieces: list[str] = []
    for _ in range(rng.randint(1, 6)):
        words = [w for w in expand(rng.choice(_EVERY_CLAUSE), rng).split() if "{" not in w]
        while words:  # pieces of one to five words
            size = rng.randint(1, 5)
            pieces.append(" ".join(words[:size]))
            del words[:size]
    if rng.random() < 0.3:
        pieces = [rng.choice(_EVERY_WORD) for _ in pieces]
    pieces += rng.choices(pieces, k=rng.choice((0, 0, 1, 2, 3))) if pieces else []
    rng.shuffle(pieces)
    slots = ("{card}", "{phone}", "{card}", "{phone}", "{account}", "{name}", "{amount}")
    for slot in rng.choices(slots, k=rng.randint(0, 4)):
        pieces.insert(rng.randint(0, len(pieces)), slot)
    text = ""
    for piece in pieces:
        text += (_capital(piece) if text[-2:] in ("", ". ", "? ") else piece) + rng.choice(
            (" ", " ", " ", ", ", ". ", ". ", "? ")
        )
    return _redacted(call.fill(text).rstrip(" ,.?") + ".", call)


CALL_TASKS: tuple[Task, ...] = ("ticket", "queue", "redact")


def call_turn(
    task: Task,
    source: Source,
    wordings: Wordings,
    intent: str | None = None,
    *,
    loose: bool = False,
) -> Turn:
    """Return a caller's message (about `intent`, or any) with the right answer under `task`."""
    if task == "redact":
        return redaction(source, wordings, loose=loose)
    intent = intent or source.rng.choice(INTENTS)
    text, call = compose(source, wordings, intent, loose=loose)
    ticket = call.ticket
    answer = ticket.json() if task == "ticket" else queue_for(intent, ticket.product)
    return Turn(text, answer, tuple(call.clauses), tuple(call.facts))


def _turn(task: Task, source: Source) -> Turn:
    rng = source.rng
    if task == "glossary":
        return Turn(*glossary.question(rng))
    if task == "chat":
        if rng.random() < 0.15:
            return Turn(compose(source, TRAINING, rng.choice(INTENTS))[0], glossary.HELP)
        return Turn(*glossary.small_talk(rng))
    if task == "redact" and rng.random() < 0.6:
        return scrambled(source)
    return call_turn(task, source, TRAINING, loose=rng.random() < 0.5)


_TASKS: tuple[Task, ...] = ("ticket", "queue", "redact", "glossary", "chat")
_SHARES = (0.42, 0.05, 0.42, 0.09, 0.02)


def example(rng: random.Random, hard: float = 0.0) -> Example:
    """Return one training conversation; about one in eight has several turns.

    `hard` is the share of names that are hard to copy.
    """
    source = Source(rng, held_out=False, hard=hard)
    task = rng.choices(_TASKS, _SHARES)[0]
    roll = rng.random()
    turns = 1 if roll < 0.87 else rng.randint(2, 4) if roll < 0.98 else rng.randint(5, 9)
    messages: list[Message] = []
    inline = task in CALL_TASKS and rng.random() < 0.1
    if task in SYSTEM and not inline and (task != "glossary" or rng.random() < 0.5):
        messages.append({"role": "system", "content": rng.choice(SYSTEM[task])})
    answer = ""
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": answer})
            if task in ("glossary", "chat") and messages[0]["role"] != "system":
                task = rng.choice(("glossary", "glossary", "chat"))
        made = _turn(task, source)
        text, answer = made.text, made.answer
        if inline:
            text = f"{rng.choice(SYSTEM[task]).rstrip('.?')}: {text}"
        messages.append({"role": "user", "content": text})
    return Example(task, messages, answer)


def examples(seed: int) -> Iterator[Example]:
    """Yield an endless stream of training conversations for a seed."""
    rng = random.Random(seed)
    while True:
        yield example(rng)

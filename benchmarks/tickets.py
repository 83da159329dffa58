"""Measure the bundled model's JSON tickets: valid answers, exact matches, speed, accepted draft tokens.

    python -m benchmarks.tickets [--tickets 600] [--at-once 8] [--results benchmarks/results/FILE]

The callers have names and numbers that training never used, and half of them also use wordings that it
never used. Each call is answered without constraints, and with ``response_format`` json_schema, with and
without speculation.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from datetime import date
from typing import Any, Final

import jsonschema_rs
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scripts.benchmarks_page import Figure

from benchmarks.results_file import machine_file, put
from galley import LLM, Grammar, SamplingParams
from recipes.assistant.generator import SYSTEM, call_turn
from recipes.assistant.vocabulary import ALL, INTENTS, Source
from recipes.assistant.wordings import HELD_OUT, TRAINING

COMMAND: Final = "python -m benchmarks.tickets"
_TEXT: Final = {"type": ["string", "null"]}
PROPERTIES: Final[dict[str, Any]] = {
    "name": _TEXT,
    "account": _TEXT,
    "intent": {"enum": list(INTENTS)},
    "product": {"enum": [*ALL, None]},
    "amount": {"type": ["number", "null"]},
    "date": _TEXT,
    "urgency": {"enum": ["low", "normal", "high"]},
}
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": PROPERTIES,
    "required": list(PROPERTIES),
    "additionalProperties": False,
}


def tickets(count: int) -> list[tuple[list[Any], str]]:
    """Return conversations and their right answers."""
    rng = random.Random(600)
    source = Source(rng, held_out=True)
    made = []
    for place in range(count):
        wordings = HELD_OUT if place % 2 else TRAINING
        turn = call_turn("ticket", source, wordings, INTENTS[place % len(INTENTS)])
        system = {"role": "system", "content": rng.choice(SYSTEM["ticket"])}
        made.append(([system, {"role": "user", "content": turn.text}], turn.answer))
    return made


def answered(
    llm: LLM, conversations: Sequence[list[Any]], params: SamplingParams, at_once: int, what: str
) -> tuple[list[str], float, int, int]:
    """Return texts, tokens per second, accepted draft tokens, and all tokens."""
    texts, tokens, accepted = [], 0, 0
    began = time.perf_counter()
    for i in track(range(0, len(conversations), at_once), what):
        for output in llm.chat(conversations[i : i + at_once], params):
            [choice] = output.choices
            texts.append(choice.text)
            tokens += len(choice.token_ids)
            accepted += choice.timing.accepted
    return texts, tokens / (time.perf_counter() - began), accepted, tokens


def main() -> None:
    """Measure, print, and write the figures if requested."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tickets", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument(
        "--results", type=machine_file, help="also write the figures to this results file"
    )
    options = parser.parse_args()
    wanted = tickets(options.tickets)
    conversations, right = [messages for messages, _ in wanted], [answer for _, answer in wanted]
    free = SamplingParams(temperature=0, max_tokens=200)
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    schema = SamplingParams(temperature=0, max_tokens=200, grammar=grammar)
    validator = jsonschema_rs.validator_for(SCHEMA)
    table = Table("answers", "valid", "exact match", "tokens/s", "accepted draft tokens")
    ways = (
        ("free", free, "off"),
        ("schema", schema, "off"),
        ("schema, speculative", schema, "auto"),
    )
    matched: dict[str, float] = {}
    for what, params, speculation in ways:
        with LLM("galley-demo", speculation=speculation, kv_cache_tokens=16384) as llm:
            llm.chat(conversations[: options.at_once], params)
            texts, pace, accepted, tokens = answered(
                llm, conversations, params, options.at_once, what
            )
        valid = sum(_is_valid(text, validator) for text in texts) / len(texts)
        matched[what] = sum(map(_same, texts, right)) / len(texts)
        row = (f"{valid:.1%}", f"{matched[what]:.1%}", f"{pace:.0f}", f"{accepted} of {tokens}")
        table.add_row(what, *row)
        if what != "free":
            assert valid == 1.0
    Console().print(table)
    if options.results:
        figure = Figure(
            what=f"bundled model: exact match of {options.tickets} tickets",
            unit="%",
            at=tuple(matched),
            measured=tuple(round(100 * share, 1) for share in matched.values()),
            date=date.today().isoformat(),
            command=COMMAND,
            remark="all answers with a schema parse and are valid",
        )
        put(options.results, [figure])


def _is_valid(text: str, validator: Any) -> bool:
    try:
        return bool(validator.is_valid(json.loads(text)))
    except ValueError:
        return False


def _same(text: str, right: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(right))
    except ValueError:
        return False


if __name__ == "__main__":
    main()

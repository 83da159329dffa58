"""Parsed answers in a comparable form: ids are random, so they are left out."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from galley.tools.conversation import Tool
from galley.tools.events import Answer, Event, whole
from galley.tools.formats import FORMATS, THINKING
from galley.tools.parser import Parser

Call = tuple[str, Any]
Parts = tuple[str, str, list[Call], list[str]]
"""Text, thinking, calls as name and arguments, warnings."""

WEATHER = Tool(
    name="get_weather",
    description="The weather of a city.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"enum": ["celsius", "fahrenheit"]},
            "places": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
)
CLOCK = Tool(name="get_time")
TOOLS = (WEATHER, CLOCK)


def new_parser(
    name: str, *, tools: Sequence[Tool] = TOOLS, thinking: str | None = None, **options: Any
) -> Parser:
    """Return a parser of the format."""
    if name != "harmony":
        options["thinking"] = THINKING[thinking] if thinking else None
    return FORMATS[name].parser(tools, **options)


def events_of(parser: Parser, chunks: Iterable[str]) -> list[Event]:
    """Return all events of an answer that arrives in pieces."""
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


def parts(answer: Answer) -> Parts:
    """Return the answer without its random parts."""
    calls = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    return answer.text, answer.reasoning, calls, answer.warnings


def read(name: str, chunks: Iterable[str], **options: Any) -> Parts:
    """Return a parser's result for an answer in the format."""
    return parts(whole(events_of(new_parser(name, **options), chunks)))

"""Answers taken apart, in a form that can be compared: ids are drawn, so they are left out."""

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
    """A parser of the format."""
    if name != "harmony":
        options["thinking"] = THINKING[thinking] if thinking else None
    return FORMATS[name].parser(tools, **options)


def events_of(parser: Parser, chunks: Iterable[str]) -> list[Event]:
    """All events of an answer that comes in pieces."""
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


def parts(answer: Answer) -> Parts:
    """The answer without what is drawn."""
    calls = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    return answer.text, answer.reasoning, calls, answer.warnings


def read(name: str, chunks: Iterable[str], **options: Any) -> Parts:
    """What a parser of the format makes of an answer."""
    return parts(whole(events_of(new_parser(name, **options), chunks)))

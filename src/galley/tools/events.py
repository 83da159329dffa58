"""What an answer is made of, piece by piece."""

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer's text.

    Attributes:
        warning: why a call, which this is, could not be read as one.
        repeats: its beginning came as a call before, which was broken: streams have told it already.
    """

    text: str
    warning: str | None = None
    repeats: bool = False


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's thinking, which is no part of the text."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins. ``index`` counts the calls of the answer, ``id`` is unique."""

    index: int
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """A piece of a call's arguments; together they are a JSON object."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """A call is complete.

    Attributes:
        broken: it is none after all: its arguments are no JSON, or it was cut off. All of its text comes in
            a Text with a warning behind this.
    """

    index: int
    broken: bool = False


Event: TypeAlias = Text | Reasoning | CallStart | Arguments | CallEnd


class Call(msgspec.Struct, frozen=True):
    """A complete call; ``arguments`` is the text of a JSON object."""

    id: str
    name: str
    arguments: str

    def as_templates_expect(self) -> dict[str, Any]:
        """The call as a message in a conversation has it."""
        function = {"name": self.name, "arguments": json.loads(self.arguments)}
        return {"type": "function", "id": self.id, "function": function}


class Answer(msgspec.Struct, frozen=True):
    """All of an answer.

    Attributes:
        text: with the text of calls that could not be read.
        reasoning: empty without thinking.
        warnings: of calls that could not be read.
    """

    text: str
    reasoning: str
    calls: list[Call]
    warnings: list[str]


def whole(events: Iterable[Event]) -> Answer:
    """An answer of all its events."""
    text: list[str] = []
    reasoning: list[str] = []
    warnings: list[str] = []
    started: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Text():
                text.append(event.text)
                if event.warning is not None:
                    warnings.append(event.warning)
            case Reasoning():
                reasoning.append(event.text)
            case CallStart():
                started[event.index], arguments[event.index] = event, []
            case Arguments():
                arguments[event.index].append(event.text)
            case CallEnd(broken=True):
                del started[event.index]
    calls = [Call(call.id, call.name, "".join(arguments[index])) for index, call in started.items()]
    return Answer("".join(text), "".join(reasoning), calls, warnings)

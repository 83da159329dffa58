"""The parts of an answer, piece by piece."""

import json
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec


class Text(msgspec.Struct, frozen=True):
    """A piece of the answer's text.

    Attributes:
        warning: if this is a failed call, why it could not be parsed.
        repeats: whether the beginning has already been reported as a call, which turned out to be
            broken, so that streams have already sent it.
    """

    text: str
    warning: str | None = None
    repeats: bool = False


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's thinking, which is not part of the text."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """The beginning of a call. ``index`` counts the calls of the answer, ``id`` is unique."""

    index: int
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """A piece of a call's arguments; together they are a JSON object."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The end of a call.

    Attributes:
        broken: whether it turned out not to be a call: its arguments are not JSON, or it was cut
            off. All of its text follows in a Text with a warning.
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
        """Return the call in the form of a message in a conversation."""
        function = {"name": self.name, "arguments": json.loads(self.arguments)}
        return {"type": "function", "id": self.id, "function": function}


class Answer(msgspec.Struct, frozen=True):
    """A complete answer.

    Attributes:
        text: the text, including that of calls that could not be parsed.
        reasoning: the thinking; empty if there is none.
        warnings: why calls could not be parsed.
    """

    text: str
    reasoning: str
    calls: list[Call]
    warnings: list[str]


def whole(events: Iterable[Event]) -> Answer:
    """Assemble an answer from all its events."""
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

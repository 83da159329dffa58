"""Incremental parser for a call written as a JSON object with a name and arguments."""

import json
from collections.abc import Collection
from typing import Final

from galley.tools.conversation import TOOL_NAME
from galley.tools.json_text import JsonText

_NAMES: Final = ("name", "function_name")
_ARGUMENTS: Final = ("arguments", "parameters")
_OTHERS: Final = ("id", "type", "function")
_LONGEST_KEY: Final = 256


class NotACall(Exception):
    """Raised if text that was parsed as a call is none; the reason is meant for people."""


class JsonCall:
    """The name and the arguments' text of a call, parsed from its JSON object.

    Attributes:
        name: name of the tool; None until it has been read.
        complete: whether the object has ended.
        read: number of characters of the last text that had been read when an error was found.
    """

    def __init__(self, known: Collection[str] | None = None) -> None:
        """Create a parser.

        Args:
            known: names of tools; any other name, and any unknown key, means that this is not a
                call. None: all names and keys are accepted.
        """
        self.name: str | None = None
        self.read = 0
        self._known = known
        self._json = JsonText()
        self._key: list[str] = []  # of the current entry, in JSON's spelling
        self._in_key = False
        self._wanted = ""  # "name", "arguments" or nothing
        self._value: list[str] = []
        self._is_text = False  # the arguments are JSON in a JSON string
        self._has_arguments = False
        self._pieces: list[str] = []

    @property
    def complete(self) -> bool:
        """Whether the object has ended."""
        return self._json.complete

    def take(self, text: str, start: int) -> int:
        """Read characters from ``start`` on; return where the object, or the text, ends.

        Raises:
            NotACall: it is not a JSON object with a name and arguments.
        """
        for at in range(start, len(text)):
            self.read = at - start
            self._take(text[at])
            if self._json.complete:
                self._check()
                return at + 1
        return len(text)

    def taken(self) -> str:
        """Return the text of the arguments that has been read since the last call."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def _take(self, char: str) -> None:
        before, depth = self._json.state, self._json.depth
        if not self._json.take(char) or (not self._json.open and not self._json.complete):
            raise NotACall("a call is not a JSON object")
        after = self._json.state
        if depth > 1:
            self._in_value(char, ended=after == "after" and self._json.depth == 1)
        elif before == "value" and depth == 1:
            if after != "value":  # no white space
                self._begin_value(char)
        elif before in ("string", "escape", "literal", "number") and not self._in_key:
            inside = before != "number" or after == "number"
            if inside:
                self._in_value(char, ended=after == "after")
            else:
                self._end_value()
        elif before in ("in key", "escape"):
            if after == "colon":
                self._end_key()
            else:
                self._key.append(char)
                if len(self._key) > _LONGEST_KEY:
                    raise NotACall("a call has a key that is too long")
        if after == "in key" and before in ("key", "next key"):
            self._key.clear()
            self._in_key = True

    def _end_key(self) -> None:
        self._in_key = False
        key = json.loads(f'"{"".join(self._key)}"')
        self._wanted = "name" if key in _NAMES else "arguments" if key in _ARGUMENTS else ""
        if self._known is not None and not self._wanted and key not in _OTHERS:
            raise NotACall("not a call")

    def _begin_value(self, char: str) -> None:
        self._value = []
        if self._wanted == "arguments":
            if self._has_arguments:
                raise NotACall("a call has two values for its arguments")
            self._has_arguments = True
            if char not in '{"n':
                raise NotACall("the arguments are not a JSON object")
            self._is_text = char != "{"
        elif self._wanted == "name" and (char != '"' or self.name is not None):
            raise NotACall("a call's name is not a string, or occurs twice")
        self._in_value(char, ended=False)

    def _in_value(self, char: str, *, ended: bool) -> None:
        if self._wanted == "arguments" and not self._is_text:
            self._pieces.append(char)
        elif self._wanted:
            self._value.append(char)
        if ended:
            self._end_value()

    def _end_value(self) -> None:
        if self._wanted == "name":
            name = json.loads("".join(self._value))
            if not TOOL_NAME.fullmatch(name):
                raise NotACall(f"{name[:64]!r} is not a valid tool name")
            if self._known is not None and name not in self._known:
                raise NotACall(f"{name[:64]!r} is not one of the tools")
            self.name = name
        elif self._wanted == "arguments" and self._is_text:
            self._pieces.append(_unpacked(json.loads("".join(self._value))))

    def _check(self) -> None:
        if self.name is None:
            raise NotACall("a call has no name")
        if not self._has_arguments:
            self._pieces.append("{}")


def _unpacked(value: str | None) -> str:
    """Return the JSON object in the text ``value``, or an empty one for null and empty text."""
    if not value or not value.strip():
        return "{}"
    text = value.strip()
    inner = JsonText()
    if text[0] != "{" or not all(map(inner.take, text)) or not inner.complete:
        raise NotACall("the arguments are not a JSON object")
    return text

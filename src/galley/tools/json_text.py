"""Recognizer of JSON, character by character (RFC 8259)."""

from typing import Final

MAX_DEPTH: Final = 64
"""Maximum depth of brackets, the same as in requests, in which clients send calls back."""

_SPACE: Final = frozenset(" \t\n\r")
_DIGITS: Final = frozenset("0123456789")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPES: Final = frozenset('"\\/bfnrt')
_LITERALS: Final = {"t": "rue", "f": "alse", "n": "ull"}
_NUMBER: Final = {
    "-": {"digit": "int", "0": "zero"},
    "zero": {".": "point", "e": "exp"},
    "int": {"digit": "int", "0": "int", ".": "point", "e": "exp"},
    "point": {"digit": "fraction", "0": "fraction"},
    "fraction": {"digit": "fraction", "0": "fraction", "e": "exp"},
    "exp": {"sign": "sign", "digit": "exponent", "0": "exponent"},
    "sign": {"digit": "exponent", "0": "exponent"},
    "exponent": {"digit": "exponent", "0": "exponent"},
}
_WHOLE: Final = frozenset(("zero", "int", "fraction", "exponent"))


class JsonText:
    """The state of parsing one JSON value.

    Attributes:
        state: what is expected: "value", "key" (or the end of an empty object), "next key", "item"
            (or the end of an empty list), "colon", "string" and "in key" (within one), "escape",
            "number", "literal", "after" (a value that another may follow) or "end".
        open: the brackets that are open, ``{`` and ``[``.
    """

    def __init__(self) -> None:
        self.state = "value"
        self.open: list[str] = []
        self._number = ""
        self._rest = ""  # of a literal
        self._hex = 0  # remaining digits of an escape
        self._in_key = False

    @property
    def depth(self) -> int:
        """Number of open brackets."""
        return len(self.open)

    @property
    def complete(self) -> bool:
        """Whether the value is complete, and nothing but white space may follow."""
        return self.state == "end"

    def take(self, char: str) -> bool:
        """Read the next character; return False if it is invalid, after which no calls may follow."""
        match self.state:
            case "string" | "in key":
                return self._in_string(char)
            case "escape":
                return self._in_escape(char)
            case "number":
                return self._in_number(char)
            case "literal":
                return self._in_literal(char)
        if char in _SPACE:
            return True
        match self.state:
            case "value" | "item":
                return self._begin(char)
            case "key" | "next key":
                if char == "}" and self.state == "key":
                    return self._close(char)
                if char != '"':
                    return False
                self.state = "in key"
                return True
            case "colon":
                self.state = "value"
                return char == ":"
            case "after":
                return self._after(char)
        return False

    def _begin(self, char: str) -> bool:
        if char == "]" and self.state == "item":
            return self._close(char)
        if char == '"':
            self.state = "string"
        elif char in "{[":
            self.open.append(char)
            self.state = "key" if char == "{" else "item"
            return len(self.open) <= MAX_DEPTH
        elif char in _LITERALS:
            self.state, self._rest = "literal", _LITERALS[char]
        elif char == "-" or char in _DIGITS:
            self.state = "number"
            self._number = {"-": "-", "0": "zero"}.get(char, "int")
        else:
            return False
        return True

    def _after(self, char: str) -> bool:
        if char == ",":
            self.state = "next key" if self.open[-1] == "{" else "value"
            return True
        return self._close(char)

    def _close(self, char: str) -> bool:
        if self.open.pop() + char not in ("{}", "[]"):
            return False
        self._ended()
        return True

    def _ended(self) -> None:
        self.state = "after" if self.open else "end"

    def _in_string(self, char: str) -> bool:
        if char == '"':
            if self.state == "in key":
                self.state = "colon"
            else:
                self._ended()
        elif char == "\\":
            self._in_key = self.state == "in key"
            self.state = "escape"
        return char >= " "

    def _in_escape(self, char: str) -> bool:
        if self._hex:
            self._hex -= 1
            allowed = char in _HEX
        elif char == "u":
            self._hex = 4
            return True
        else:
            allowed = char in _ESCAPES
        if not self._hex:
            self.state = "in key" if self._in_key else "string"
        return allowed

    def _in_number(self, char: str) -> bool:
        kind = "digit" if char in _DIGITS and char != "0" else char.lower()
        kind = "sign" if char in ("+", "-") else kind
        following = _NUMBER[self._number].get(kind)
        if following is not None:
            self._number = following
            return True
        if self._number not in _WHOLE:
            return False
        self._ended()
        return self.take(char)

    def _in_literal(self, char: str) -> bool:
        if char != self._rest[0]:
            return False
        self._rest = self._rest[1:]
        if not self._rest:
            self._ended()
        return True

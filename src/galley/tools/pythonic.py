"""Llama 3.2 and 4, pythonic: ``[name(key="value", other=[1, 2]), name()]``."""

import ast
import json
from typing import Any, Final

from galley.tools.json_call import NotACall
from galley.tools.json_text import JsonText
from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

BEGIN, END = "<|python_start|>", "<|python_end|>"

_CUT: Final = "the answer ends within a call"
_NO_LITERAL: Final = "an argument is not a Python literal"
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_OPEN: Final = {"[": "]", "{": "}", "(": ")"}


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    call = (NAME, "(", ARGUMENTS, ")")
    return CallSyntax(
        call, begin=("[",), between=(", ",), end=("]",), arguments="python", marked=False
    )


class PythonicParser(Parser):
    """Parses a list of calls at the beginning of the answer or after its marker, or text.

    Without the marker, only calls of the given tools are calls. Each argument is emitted as a
    whole.
    """

    MARKERS = (BEGIN, END)

    def _answer(self) -> Steps[None]:
        if (yield from self._skip_space()) == "[":
            yield from self._attempt(self._list(), quiet=True)
        else:
            self._say("".join(self._raw))
            self._raw.clear()
        while (yield from self._text_until(BEGIN)) is not None:
            yield from self._attempt(self._list())

    def _list(self) -> Steps[None]:
        yield from self._skip_space()
        if (yield from self._expect("[")) is None:
            raise NotACall("a call begins, but '[' does not follow")
        while (yield from self._skip_space()) != "]":
            yield from self._call()
            yield from self._skip_space()
            yield from self._expect(",")
        self._read(1)
        yield from self._skip_space()
        yield from self._expect(END)

    def _call(self) -> Steps[None]:
        name = (yield from self._until("("))[0].strip()
        if name not in self._schemas:
            raise NotACall(f"{name[:64]!r} is not one of the tools")
        self._start(name)
        keys: set[str] = set()
        while (yield from self._skip_space()) != ")":
            key = (yield from self._until("="))[0].strip()
            if not key.isidentifier() or key in keys:
                raise NotACall(f"{key[:64]!r} is not a parameter's name, or occurs twice")
            value = yield from self._literal()
            self._argue(("{" if not keys else ", ") + _json(key) + ": " + value)
            keys.add(key)
            yield from self._skip_space()
            yield from self._expect(",")
        self._read(1)
        self._argue("}" if keys else "{}")
        yield from self._end()

    def _literal(self) -> Steps[str]:
        """Read a Python literal up to the comma or bracket after it; return it as JSON."""
        parts: list[str] = []
        closing: list[str] = []
        quote = ""
        escaped = False
        while True:
            at = self._at
            while at < len(self._buffer):
                char = self._buffer[at]
                if quote:
                    quote = "" if char == quote and not escaped else quote
                    escaped = char == "\\" and not escaped
                elif char in "'\"":
                    quote = char
                elif char in _OPEN:
                    closing.append(_OPEN[char])
                elif closing and char == closing[-1]:
                    closing.pop()
                elif not closing and char in ",)":
                    parts.append(self._read(at - self._at))
                    return python_as_json("".join(parts))
                at += 1
            parts.append(self._read(at - self._at))
            if not (yield from self._more()):
                raise NotACall(_CUT)


def python_as_json(literal: str) -> str:
    """Convert a Python literal, or JSON, to JSON. Raises NotACall for anything else."""
    literal = literal.strip()
    value = JsonText()
    # The space ends a number.
    if all(map(value.take, literal + " ")) and value.complete:
        return literal
    try:
        return _json(_value(ast.parse(literal, mode="eval").body))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotACall(_NO_LITERAL) from error


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise NotACall(_NO_LITERAL)


def _key(node: ast.AST | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise NotACall(_NO_LITERAL)


def _json(value: Any) -> str:
    """Return JSON text; characters that cannot be encoded, such as half of a pair, are escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or _encodable(text) else json.dumps(value)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

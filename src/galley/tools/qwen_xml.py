"""Qwen3-Coder: parameters between tags, a call being

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>
"""

import json
from typing import Final

from galley.tools.json_call import NotACall
from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax
from galley.tools.value_types import as_json, types_of

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_VALUE_ENDS: Final = (PARAMETER_END, PARAMETER, FUNCTION_END)
"""Models sometimes omit the first of these."""

_LONGEST_VALUE: Final = 2**20


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    call = (BEGIN, f"\n{FUNCTION}", NAME, ">\n", ARGUMENTS, f"{FUNCTION_END}\n", END)
    return CallSyntax(call, between=("\n",), arguments="tags")


class QwenXmlParser(Parser):
    """Parses text and calls. Parameters that are text stream; other values are emitted as a whole."""

    MARKERS = (BEGIN, END)

    def _answer(self) -> Steps[None]:
        # Models sometimes omit the first of these, but not where a grammar requires its token.
        whole = self._constrained and BEGIN in self._tokens
        begins = (BEGIN,) if whole else (BEGIN, FUNCTION)
        while (marker := (yield from self._text_until(*begins))) is not None:
            yield from self._attempt(self._call(opened=marker == FUNCTION))

    def _call(self, *, opened: bool) -> Steps[None]:
        if not opened:
            yield from self._skip_space()
            if (yield from self._expect(FUNCTION)) is None:
                raise NotACall(f"a call begins, but {FUNCTION!r} does not follow")
        name, _ = yield from self._until(">")
        name = name.strip()
        self._start(name)
        root = self._schemas.get(name, {})
        properties = root.get("properties", {})
        keys: set[str] = set()
        while (yield from self._next_parameter()):
            key = (yield from self._until(">"))[0].strip()
            if key in keys:
                raise NotACall(f"a call has the parameter {key[:64]!r} twice")
            self._argue(("{" if not keys else ", ") + _json(key) + ": ")
            keys.add(key)
            schema = properties.get(key) if isinstance(properties, dict) else None
            yield from self._value(types_of(schema, root))
        self._argue("}" if keys else "{}")
        yield from self._end()
        yield from self._skip_space()
        yield from self._expect(END)

    def _next_parameter(self) -> Steps[bool]:
        yield from self._skip_space()
        found = yield from self._expect(PARAMETER, FUNCTION_END)
        if found is None:
            raise NotACall(
                f"a call has neither {PARAMETER!r} nor {FUNCTION_END!r} after its name or a parameter"
            )
        return found == PARAMETER

    def _value(self, types: frozenset[str]) -> Steps[None]:
        yield from self._expect("\n")
        if types == {"string"}:
            self._argue('"')
            yield from self._stream_text()
            self._argue('"')
            return
        value, end = yield from self._until(*_VALUE_ENDS, most=_LONGEST_VALUE)
        self._argue(as_json(value.removesuffix("\n"), types))
        if end != PARAMETER_END:
            self._unread(len(end))

    def _stream_text(self) -> Steps[None]:
        """Emit the text of a value up to its end, without the line break before that."""
        ends = tuple(newline + end for end in _VALUE_ENDS for newline in ("\n", ""))
        while True:
            piece, end = self._piece(ends)
            self._argue(_json(self._read(len(piece)))[1:-1])
            if end is not None:
                self._read(len(end))
                if not end.endswith(PARAMETER_END):
                    self._unread(len(end.lstrip()))
                return
            if not (yield from self._more()):
                raise NotACall("the answer ends within a call")


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

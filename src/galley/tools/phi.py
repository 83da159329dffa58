"""Phi-4-mini: ``<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>``, or ``functools[...]``."""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

BEGIN, END, WORD = "<|tool_call|>", "<|/tool_call|>", "functools["


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    call = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")
    return CallSyntax(call, begin=(BEGIN, "["), between=(", ",), end=("]", END))


class PhiParser(Parser):
    """Parses text, then a list of calls."""

    MARKERS = (BEGIN, END)

    def _answer(self) -> Steps[None]:
        while (marker := (yield from self._text_until(BEGIN, WORD))) is not None:
            if marker == WORD:
                self._unread(1)
            yield from self._attempt(self._call())

    def _call(self) -> Steps[None]:
        yield from self._json_calls()
        yield from self._skip_space()
        yield from self._expect(END)

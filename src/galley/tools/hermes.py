"""Hermes, Qwen 2.5 and 3, and others: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

BEGIN, END = "<tool_call>", "</tool_call>"


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    call = (BEGIN, '\n{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}\n", END)
    return CallSyntax(call, between=("\n",))


class HermesParser(Parser):
    """Parses text and calls in any order."""

    MARKERS = (BEGIN, END)

    def _answer(self) -> Steps[None]:
        while (yield from self._text_until(BEGIN)) is not None:
            yield from self._attempt(self._call())

    def _call(self) -> Steps[None]:
        yield from self._skip_space()
        yield from self._json_call()
        yield from self._skip_space()
        yield from self._expect(END)

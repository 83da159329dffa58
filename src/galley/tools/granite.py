"""Granite 3: ``<|tool_call|>[{"name": ..., "arguments": {...}}]``."""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

BEGIN, ALSO = "<|tool_call|>", "<tool_call>"


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    call = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")
    marker = BEGIN if BEGIN in template else ALSO
    return CallSyntax(call, begin=(marker, "["), between=(", ",), end=("]",))


class GraniteParser(Parser):
    """Parses text, then a list of calls. Version 3.1 and later may write the marker of Hermes."""

    MARKERS = (BEGIN, ALSO)

    def _answer(self) -> Steps[None]:
        while (yield from self._text_until(BEGIN, ALSO)) is not None:
            yield from self._attempt(self._call())

    def _call(self) -> Steps[None]:
        yield from self._json_calls()
        yield from self._skip_space()
        yield from self._expect("</tool_call>")

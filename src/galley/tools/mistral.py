"""Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, now ``[TOOL_CALLS]name[ARGS]{...}``."""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

BEGIN, ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    if ARGS in template:
        return CallSyntax((BEGIN, NAME, ARGS, ARGUMENTS))
    call = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")
    return CallSyntax(call, begin=(BEGIN, "["), between=(", ",), end=("]",))


class MistralParser(Parser):
    """Parses text, then calls; the newer form has the marker before each call."""

    MARKERS = (BEGIN, ID, ARGS)

    def _answer(self) -> Steps[None]:
        while (yield from self._text_until(BEGIN)) is not None:
            yield from self._attempt(self._call())

    def _call(self) -> Steps[None]:
        if (yield from self._skip_space()) in ("[", "{"):
            yield from self._json_calls()
            return
        name, marker = yield from self._until(ARGS, ID, "{")
        if marker == ID:
            _, marker = yield from self._until(ARGS, "{")
        if marker == "{":
            self._unread(1)
        self._start(name.strip())
        yield from self._arguments()
        yield from self._end()

"""Llama 3: ``{"name": ..., "parameters": {...}}``, alone or after ``<|python_tag|>``."""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

TAG = "<|python_tag|>"


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    call = ('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}")
    return CallSyntax(call, between=("; ",), marked=False)


class LlamaParser(Parser):
    """Parses calls at the beginning of the answer, separated by ``;`` or line breaks, or only text.

    Without the tag, only an object that names one of the tools is a call, because a model may also
    answer in JSON.
    """

    MARKERS = (TAG,)

    def _answer(self) -> Steps[None]:
        if (yield from self._skip_space()) == "{":
            yield from self._attempt(self._calls_in_a_row(known=True), quiet=True)
        else:
            self._say("".join(self._raw))
            self._raw.clear()
        while (yield from self._text_until(TAG)) is not None:
            yield from self._attempt(self._calls_in_a_row(known=False))

    def _calls_in_a_row(self, *, known: bool) -> Steps[None]:
        while True:
            yield from self._skip_space()
            yield from self._json_call(known=known)
            yield from self._skip_space()
            yield from self._expect(";", ",")
            if (yield from self._skip_space()) != "{":
                return

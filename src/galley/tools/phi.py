"""Phi-4-mini: ``<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>``, or ``functools[...]``."""

from galley.tools.parser import Parser, Steps

BEGIN, END, WORD = "<|tool_call|>", "<|/tool_call|>", "functools["


class PhiParser(Parser):
    """Text, then a list of calls."""

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

# ruff: noqa: RUF001, RUF002 - the tokens are spelled with these characters
"""DeepSeek V3, R1 and V3.1: each call is between special tokens made for calls.

V3 and R1 write ``function<｜tool▁sep｜>name``, a line break and the arguments between
```` ```json ```` and ```` ``` ````; V3.1 writes ``name<｜tool▁sep｜>`` and the arguments.
"""

from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE, FENCE_END = "```json", "```"


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    if FENCE in template:
        head = (BEGIN, "function", SEPARATOR, NAME, f"\n{FENCE}\n")
        call = (*head, ARGUMENTS, f"\n{FENCE_END}", END)
        return CallSyntax(call, begin=(ALL_BEGIN,), between=("\n",), end=(ALL_END,))
    plain = (BEGIN, NAME, SEPARATOR, ARGUMENTS, END)
    return CallSyntax(plain, begin=(ALL_BEGIN,), end=(ALL_END,))


class DeepSeekParser(Parser):
    """Parses text, then calls."""

    MARKERS = (ALL_BEGIN, ALL_END, BEGIN, SEPARATOR, END)

    def _answer(self) -> Steps[None]:
        while (marker := (yield from self._text_until(BEGIN, ALL_BEGIN, ALL_END))) is not None:
            if marker == BEGIN:
                yield from self._attempt(self._call())
            else:
                yield from self._skip_space()
            self._raw.clear()

    def _call(self) -> Steps[None]:
        name, _ = yield from self._until(SEPARATOR)
        fenced = (yield from self._skip_space()) != "{"
        if fenced:
            name, _ = yield from self._until("\n")
            yield from self._skip_space()
            yield from self._expect(FENCE)
        self._start(name.strip())
        yield from self._arguments()
        yield from self._end()
        if fenced:
            yield from self._skip_space()
            yield from self._expect(FENCE_END)
        yield from self._skip_space()
        yield from self._expect(END)

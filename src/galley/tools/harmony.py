"""gpt-oss: messages with a channel each, in OpenAI's harmony format.

An answer continues after ``<|start|>assistant``. A message is a header, such as
``<|channel|>analysis`` or ``<|channel|>commentary to=functions.NAME <|constrain|>json``, then
``<|message|>``, a body, and ``<|end|>``, ``<|call|>`` or ``<|return|>``. The channel "analysis" is
thinking, unless the message is to a function.
"""

import re
from typing import Final

from galley.tools.json_call import NotACall
from galley.tools.parser import Parser, Steps
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax

START, CHANNEL, CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
MESSAGE, END, CALL, RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
ANALYSIS: Final = f"{CHANNEL}analysis{MESSAGE}"
"""Start of thinking."""

_TO: Final = "to="
_ENDS: Final = (END, CALL, RETURN, START, CHANNEL)
_NAME_OF_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS: Final = "functions."


def syntax(template: str) -> CallSyntax:
    """Return the syntax in which ``template`` writes calls."""
    head = (CHANNEL, f"commentary to={_FUNCTIONS}", NAME, " ", CONSTRAIN, "json", MESSAGE)
    return CallSyntax((*head, ARGUMENTS), several=False)


class HarmonyParser(Parser):
    """Parses thinking, text and calls, each of which is a message."""

    MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)

    def _run(self) -> Steps[None]:
        yield from self._skip_space()
        # The prompt ends with the beginning of the first header.
        marker = yield from self._expect(_TO, CHANNEL)
        if marker is None:
            self._say("".join(self._raw))
        while True:
            if marker in (_TO, START, CHANNEL):
                yield from self._attempt(self._message())
            marker = yield from self._text_until(*_ENDS)
            if marker is None:
                break
        if not self.calls:
            self._say_spaces()

    def _message(self) -> Steps[None]:
        begin = self._position - sum(map(len, self._raw))
        yield from self._until(MESSAGE)
        header = "".join(self._raw)
        channel, recipient = _NAME_OF_CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None:
            yield from self._to(recipient[1])
        elif channel is not None and channel[1] == "analysis":
            end = yield from self._reason_until(begin, END, CALL, RETURN, START)
            if end == START:
                self._unread(len(START))

    def _to(self, recipient: str) -> Steps[None]:
        if not recipient.startswith(_FUNCTIONS):
            raise NotACall(f"{recipient[:64]!r} is not one of the tools")
        self._start(recipient.removeprefix(_FUNCTIONS))
        yield from self._arguments()
        yield from self._end()

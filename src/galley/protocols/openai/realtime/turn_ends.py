"""Has the language model read what is being said: to judge whether a turn is over, and to answer sooner."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from galley.errors import GalleyError
from galley.gateway.caller import Caller
from galley.gateway.turn_end import UnmarkedEnd, turn_end
from galley.protocols.openai.realtime.eagerness import Eagerness, silence_ms
from galley.protocols.openai.realtime.response import ENDPOINT, Find
from galley.protocols.openai.realtime.sentence_ends import SentenceEnds
from galley.speech.options import TurnOptions
from galley.tools.conversation import Conversation

EndAfter = Callable[[int, int], Awaitable[None]]
"""Ends a turn, by its number, once its silence has lasted some milliseconds."""

log = logging.getLogger("galley.server")

_WARM_CHARACTERS: Final = 200
"""New text of a turn that is worth a prefill of its own while the caller continues."""


class TurnEnds:
    """The readings of one conversation's open turn; at most one of each kind runs."""

    def __init__(self, model: Find, caller: Callable[[str], Caller], end_after: EndAfter) -> None:
        """Begin with no turn.

        Args:
            model: finds the language model.
            caller: returns the caller of one reading, by its name.
            end_after: ends a turn.
        """
        self._model, self._caller, self._end_after = model, caller, end_after
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._warming: asyncio.Task[None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self._warmed = 0
        self._unmarked = False
        self._sentence_ends = SentenceEnds()

    def ended(self, text: str) -> None:
        """Learn from the transcript of a turn that is over."""
        self._sentence_ends.take(text)

    def warm(self, conversation: Conversation) -> None:
        """Read a conversation whose last message is still being said, if enough of it is new.

        Its keys and values are then in the prefix cache when it is answered.
        """
        length = len(conversation.messages[-1]["content"])
        self._warmed = min(self._warmed, length)
        if length and length < self._warmed + _WARM_CHARACTERS:
            return
        if self._warming is None or self._warming.done():
            self._warmed = length
            self._warming = self._begin(self._warm(conversation))

    def judge(self, turn: int, conversation: Conversation, eagerness: Eagerness) -> None:
        """Judge whether a turn that has paused is over, and say how long its silence has to last."""
        self.resume()
        self._judging = self._begin(self._judge(turn, conversation, eagerness))

    def resume(self) -> None:
        """Stop judging, because the caller continues."""
        if self._judging is not None:
            self._judging.cancel()
            self._judging = None

    def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(report)
        return task

    async def _read(self, conversation: Conversation) -> float:
        caller = self._caller(f"turn-{next(self._numbers)}")
        return await turn_end(await self._model(), ENDPOINT, caller, conversation)

    async def _warm(self, conversation: Conversation) -> None:
        try:
            await self._read(conversation)
        except GalleyError as error:  # the response meets the same problem, and reports it
            log.debug("a prompt was not read ahead: %s", error)

    async def _judge(self, turn: int, conversation: Conversation, eagerness: Eagerness) -> None:
        try:
            read = await self._read(last_turn_alone(conversation))
            text = conversation.messages[-1]["content"]
            probability = self._sentence_ends.weighed(read, text)
            silence = silence_ms(probability, eagerness)
        except UnmarkedEnd as error:
            silence = TurnOptions().silence_duration_ms
            if not self._unmarked:
                log.warning("turns end after %d ms of silence: %s", silence, error)
            self._unmarked = True
        except GalleyError as error:
            log.warning("the end of a turn could not be judged: %s", error)
            return
        # What follows may end this turn, and with it what cancels this task.
        self._judging = None
        await self._end_after(turn, silence)


def last_turn_alone(conversation: Conversation) -> Conversation:
    """Return the instructions and the last message.

    Earlier turns mislead a small model about the end of this one, and help a larger one little.
    """
    *before, last = conversation.messages
    head = [message for message in before[:1] if message["role"] == "system"]
    return msgspec.structs.replace(conversation, messages=[*head, last])


def report(task: asyncio.Task[None]) -> None:
    """Log what ended a task of a conversation, unless the client is gone, which its connection handles."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, GalleyError):
        log.error("a conversation failed", exc_info=error)

"""One response of a conversation: text or speech, and calls of functions, sent as they are made."""

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

from galley.errors import GalleyError
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Finish, Generation
from galley.gateway.served import ServedModel
from galley.gateway.speaking import Speaking
from galley.protocols.common.errors import envelope
from galley.protocols.openai.realtime.conversation_schemas import Answers
from galley.protocols.openai.realtime.items import Item, Items
from galley.protocols.openai.realtime.outbox import Outbox
from galley.protocols.openai.realtime.turn_times import TurnTimes
from galley.tools.events import Arguments, CallEnd, CallStart, Event, Text
from galley.tts.encode import telephony_encoder
from galley.tts.pieces import Pieces
from galley.types import LIVE_PRIORITY, SamplingParams

Find = Callable[[], Awaitable[ServedModel]]
Reason = Literal["turn_detected", "client_cancelled"]
Ended = Literal["completed", "incomplete"]

log = logging.getLogger("galley.server")

ENDPOINT: Final = "/v1/realtime"
_CHARACTER_MILLISECONDS: Final = 65
"""Time that a character takes to say, where its audio has not been made."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Finds the models of a conversation, which may be loaded on request."""

    language: Find
    voice: Find | None


class Response:
    """A response, from its creation to ``response.done``. :meth:`run` is a task of its own.

    Attributes:
        message: the message, once its first words are there.
        first_audio: when its first audio was sent, on the monotonic clock.
        failed: whether it ended with an error.
    """

    def __init__(
        self,
        response_id: str,
        models: Models,
        caller: Callable[[str], Caller],
        items: Items,
        answers: Answers,
        outbox: Outbox,
        *,
        metadata: dict[str, str] | None = None,
        keeps: bool = True,
        times: TurnTimes | None = None,
    ) -> None:
        """Create a response; nothing is sent yet.

        Args:
            response_id: unique.
            models: the models that answer and speak.
            caller: returns the caller of one part of the work, by its name.
            items: the conversation, to which the answer is added.
            answers: how to answer.
            outbox: takes the events.
            metadata: the client's, sent back with the response.
            keeps: whether the answer becomes part of the conversation.
            times: of the turn that is answered; they are sent with the first audio.
        """
        self.id = response_id
        self.message: Item | None = None
        self.first_audio: float | None = None
        self.failed = False
        self.milliseconds = 0
        self._models, self._caller = models, caller
        self._items, self._answers = items, answers
        self._outbox, self._send = outbox, outbox.send
        self._metadata, self._keeps = metadata, keeps
        self._times = times
        self._output: list[Item] = []
        self._calls: dict[int, Item] = {}
        self._reason: Reason | None = None
        self._usage: dict[str, int] | None = None
        self._pieces = Pieces()
        self._said: asyncio.Queue[str | None] = asyncio.Queue()

    async def release(self, items: Items) -> None:
        """Send what the outbox has kept: the response is wanted.

        Args:
            items: the conversation, which has the answer's items so far.
        """
        self._items = items
        await self._outbox.release()
        if self.first_audio is not None:
            self.first_audio = time.monotonic()
            await self._send_times()

    def stop(self, reason: Reason) -> None:
        """State why the task is going to be cancelled."""
        self._reason = reason

    async def run(self) -> None:
        """Make the response, and send its events."""
        speaking: asyncio.Task[None] | None = None
        status, details = "completed", dict[str, Any]()
        try:
            await self._send({"type": "response.created", "response": self._shown("in_progress")})
            if self._answers.modality == "audio":
                speaking = asyncio.create_task(self._speak())
            work = [asyncio.create_task(self._write()), *([speaking] if speaking else [])]
            finish = await _all(work)
            if finish == "length":
                status, details = "incomplete", {"reason": "max_output_tokens"}
        except asyncio.CancelledError:
            if self._reason is None:  # the connection is closed
                raise
            status, details = "cancelled", {"reason": self._reason}
        except Exception as error:  # the client waits for the last event, whatever failed
            if not isinstance(error, GalleyError):
                log.exception("response %s failed", self.id)
            self.failed = True
            status, details = "failed", {"error": envelope(error)["error"]}
        ended: Ended = "completed" if status == "completed" else "incomplete"
        if self.message is not None:
            await self._message_done(ended)
        for item in self._calls.values():
            await self._call_done(item, ended)
        response = self._shown(status) | {"status_details": {"type": status, **details}}
        await self._send({"type": "response.done", "response": response | {"usage": self._usage}})

    def heard(self, now: float) -> int:
        """Return the milliseconds of audio that the caller has heard, if it was played as it came."""
        if self.first_audio is None:
            return 0
        return min(self.milliseconds, int(1000 * (now - self.first_audio)))

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._reason is not None

    @property
    def plays_until(self) -> float:
        """When the caller has heard all of the audio so far, on the monotonic clock; 0 without audio."""
        return 0.0 if self.first_audio is None else self.first_audio + self.milliseconds / 1000

    # The text.

    async def _write(self) -> Finish | None:
        """Have the language model answer; return the reason for its end."""
        served = await self._models.language()
        finish: Finish | None = None
        generation: Generation | None = None
        try:
            with opened(Call(served, ENDPOINT, self._caller("text"))) as call:
                generation = await converse(
                    call,
                    self._answers.conversation(self._items.messages()),
                    SamplingParams(max_tokens=self._answers.max_tokens),
                    up_to_context=True,
                    truncate=True,
                )
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    for event in piece.events:
                        await self._take(event)
                    finish = piece.finish or finish
        finally:
            if generation is not None:
                generation.close()
                count = generation.usage()
                self._usage = {
                    "input_tokens": count.prompt,
                    "output_tokens": count.generated,
                    "total_tokens": count.prompt + count.generated,
                }
            for piece_ in self._pieces.end():
                self._said.put_nowait(piece_)
            self._said.put_nowait(None)
        return finish

    async def _take(self, event: Event) -> None:
        match event:
            case Text() if self._answers.modality == "audio":
                for piece in self._pieces.feed(event.text):
                    self._said.put_nowait(piece)
            case Text():
                text = event.text if self.message is not None else event.text.lstrip()
                if text:
                    await self._message_text(text, "output_text")
            case CallStart():
                item = Item(
                    self._item_id(),
                    "function_call",
                    call_id=event.id,
                    name=event.name,
                    status="in_progress",
                )
                self._calls[event.index] = item
                await self._begin(item)
            case Arguments():
                item = self._calls[event.index]
                item.text += event.text
                await self._send(
                    {
                        "type": "response.function_call_arguments.delta",
                        **self._place(item),
                        "call_id": item.call_id,
                        "delta": event.text,
                    }
                )
            case CallEnd():
                item = self._calls.pop(event.index)
                await self._call_done(item, "incomplete" if event.broken else "completed")
            case _:  # thinking is neither sent nor spoken
                pass

    async def _call_done(self, item: Item, status: Ended) -> None:
        about = {"call_id": item.call_id, "name": item.name, "arguments": item.text}
        kind = "response.function_call_arguments.done"
        await self._send({"type": kind, **self._place(item), **about})
        await self._done(item, status)

    # The message.

    async def _message_text(self, text: str, kind: Literal["output_text", "output_audio"]) -> Item:
        """Add text to the message, which the first text begins."""
        if self.message is None:
            spoken = kind == "output_audio"
            self.message = Item(
                self._item_id(), role="assistant", spoken=spoken, status="in_progress"
            )
            await self._begin(self.message)
            await self._part("added", self.message)
        self.message.text += text
        name = "output_text" if kind == "output_text" else "output_audio_transcript"
        await self._send(
            {"type": f"response.{name}.delta", **self._content(self.message), "delta": text}
        )
        return self.message

    async def _message_done(self, status: Ended) -> None:
        item = self.message
        assert item is not None
        content = self._content(item)
        if item.spoken:
            await self._send({"type": "response.output_audio.done", **content})
            kind = "response.output_audio_transcript.done"
            await self._send({"type": kind, **content, "transcript": item.text})
        else:
            await self._send({"type": "response.output_text.done", **content, "text": item.text})
        await self._part("done", item)
        await self._done(item, status)

    async def _part(self, what: str, item: Item) -> None:
        kind = ("audio", "transcript") if item.spoken else ("text", "text")
        part = {"type": kind[0], kind[1]: item.text}
        await self._send(
            {"type": f"response.content_part.{what}", **self._content(item), "part": part}
        )

    # The speech.

    async def _speak(self) -> None:
        """Speak the pieces of the text as they are written."""
        assert self._models.voice is not None
        answers = self._answers
        piece = await self._said.get()
        if piece is None:
            return
        call = Call(await self._models.voice(), ENDPOINT, self._caller("speech"))
        with opened(call):
            speaking = Speaking(
                call, voice=answers.voice, speed=answers.speed, priority=LIVE_PRIORITY
            )
        try:
            encoder = telephony_encoder(answers.format, speaking.sample_rate)
            while piece is not None:
                if self._times is not None and self.message is None:
                    self._times.first_words = time.monotonic()
                item = await self._message_text(
                    f" {piece}" if self.message else piece, "output_audio"
                )
                async with aclosing(speaking.say(piece)) as audio:
                    async for samples in audio:
                        await self._audio(item, encoder.encode(samples))
                        self.milliseconds = round(1000 * speaking.seconds)
                item.parts.append((len(item.text), self.milliseconds))
                await self._outbox.released()
                piece = await self._said.get()
            if self.message is not None:
                await self._audio(self.message, encoder.finish())
            speaking.whole()
        finally:
            self._estimate_last_part()
            speaking.close()

    def _estimate_last_part(self) -> None:
        """Estimate when text ends whose audio was not made to its end."""
        item = self.message
        if item is None:
            return
        characters, ended = item.parts[-1] if item.parts else (0, 0)
        more = len(item.text) - characters
        if more:
            expected = ended + more * _CHARACTER_MILLISECONDS
            item.parts.append((len(item.text), max(expected, self.milliseconds)))

    async def _audio(self, item: Item, data: bytes) -> None:
        if data:
            now = time.monotonic()
            self.first_audio = self.first_audio or now
            delta = base64.b64encode(data).decode()
            kind = "response.output_audio.delta"
            await self._send({"type": kind, **self._content(item), "delta": delta})
            if self._times is not None:
                self._times.first_audio = self._times.first_audio or now
                if not self._outbox.holds:
                    await self._send_times()

    async def _send_times(self) -> None:
        times = self._times
        if times is not None and not times.sent:
            times.sent = True
            await self._send(times.event(self.id))

    # Items.

    async def _begin(self, item: Item) -> None:
        self._output.append(item)
        await self._send(
            {
                "type": "response.output_item.added",
                "response_id": self.id,
                "output_index": len(self._output) - 1,
                "item": item.shown(),
            }
        )
        if self._keeps:
            before = self._items.add(item)
            added = {"type": "conversation.item.added", "previous_item_id": before}
            await self._send({**added, "item": item.shown()})

    async def _done(self, item: Item, status: Ended) -> None:
        item.status = status
        index = self._output.index(item)
        shown = {"output_index": index, "item": item.shown()}
        await self._send({"type": "response.output_item.done", "response_id": self.id, **shown})
        if self._keeps:
            await self._send({"type": "conversation.item.done", "item": item.shown()})

    def _item_id(self) -> str:
        return f"item_{self.id.removeprefix('resp_')}_{len(self._output)}"

    def _place(self, item: Item) -> dict[str, Any]:
        index = self._output.index(item)
        return {"response_id": self.id, "item_id": item.id, "output_index": index}

    def _content(self, item: Item) -> dict[str, Any]:
        return {**self._place(item), "content_index": 0}

    def _shown(self, status: str) -> dict[str, Any]:
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": None,
            "output": [item.shown() for item in self._output],
            "audio": {"output": self._answers.shown_audio()},
            "metadata": self._metadata,
            "usage": None,
            **self._answers.shown(),
        }


async def _all(work: "list[asyncio.Task[Any]]") -> Any:
    """Return the first task's result when all have ended; an error or a cancellation ends the others."""
    try:
        await asyncio.gather(*work)
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return work[0].result()

"""A conversation over ``/v1/realtime``: what the client and the caller's speech change in it."""

import asyncio
import dataclasses
import itertools
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from galley.errors import GalleyError, RequestError
from galley.gateway.caller import Caller
from galley.observe.tracing import Trace
from galley.protocols.openai.realtime.conversation_schemas import (
    Answers,
    ConversationSettings,
    ConversationUpdate,
    ItemCreate,
    ItemNamed,
    ItemTruncate,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
)
from galley.protocols.openai.realtime.items import Item, Items
from galley.protocols.openai.realtime.response import Models, Reason, Response, Send
from galley.protocols.openai.realtime.schemas import Event
from galley.service.voice_requests import voice_of
from galley.types.model_info import ModelInfo

if TYPE_CHECKING:
    from galley.speech.live_events import LiveEvent

log = logging.getLogger("galley.server")

BUSY: Final = "conversation_already_has_active_response"
"""OpenAI's code of an error: a response is created while there is one."""


class Conversation:
    """The items, settings and responses of one connection.

    Attributes:
        settings: the settings of the session.
    """

    def __init__(
        self,
        settings: ConversationSettings,
        models: Models,
        caller: Caller,
        voice: ModelInfo | None,
        *,
        send: Send,
    ) -> None:
        """Begin an empty conversation.

        Args:
            settings: its first settings.
            models: the models that answer and speak.
            caller: who is connected.
            voice: describes the model that speaks, if there is one.
            send: sends an event to the client.
        """
        self.settings = settings
        self._models, self._caller, self._voice = models, caller, voice
        self._send = send
        self._items = Items()
        self._numbers = itertools.count(1)
        self._response: Response | None = None
        self._task: asyncio.Task[None] | None = None

    async def handle(self, event: Event) -> None:
        """Honour a client's event, other than those of the audio buffer and the session.

        Raises:
            RequestError: it cannot be honoured.
        """
        match event:
            case ItemCreate():
                item = Item.of(event.item, f"item_{self._caller.request_id}_c{next(self._numbers)}")
                before = self._items.add(item, event.previous_item_id)
                place = {"previous_item_id": before, "item": item.shown()}
                await self._send({"type": "conversation.item.added", **place})
                await self._send({"type": "conversation.item.done", **place})
            case ItemTruncate():
                await self._truncate(event.item_id, event.audio_end_ms)
            case ItemNamed() if event.type.endswith("delete"):
                self._items.remove(event.item_id)
                deleted = {"type": "conversation.item.deleted", "item_id": event.item_id}
                await self._send(deleted)
            case ItemNamed():
                item = self._items.named(event.item_id)
                await self._send({"type": "conversation.item.retrieved", "item": item.shown()})
            case ResponseCreate():
                if self._active is not None:
                    raise RequestError(
                        "a response is in progress: wait for response.done, or send response.cancel",
                        code=BUSY,
                    )
                await self._respond(event.response or ResponseFields())
            case ResponseCancel():
                active = self._active
                if active is None or event.response_id not in (None, active.id):
                    raise RequestError(
                        "there is no such response in progress",
                        param="response_id",
                        code="response_cancel_not_active",
                    )
                await self._stop("client_cancelled")

    def configured(self, event: ConversationUpdate) -> ConversationSettings:
        """Return the settings after ``session.update``. Raises RequestError if they cannot be honoured."""
        settings = self.settings.updated(event.session)
        self._check(settings.answers, "session")
        return settings

    async def heard(self, event: "LiveEvent", item_id: str) -> None:
        """Follow the caller's speech: it interrupts a response, and its transcript begins one."""
        with suppress(RequestError):  # the client has deleted the item
            await self._follow(event, item_id)

    async def _follow(self, event: "LiveEvent", item_id: str) -> None:
        from galley.speech import live_events as live

        match event:
            case live.SpeechStarted() if self.settings.interrupt:
                await self._interrupt()
            case live.Committed():
                self._items.add(Item(item_id, role="user", spoken=True, waits=True))
            case live.Completed():
                item = self._items.named(item_id)
                item.text, item.waits = event.text.strip(), False
                turns = self.settings.source.turns is not None
                if item.text and turns and self.settings.create and self._active is None:
                    await self._respond(ResponseFields())
            case _:
                pass

    @property
    def last_item(self) -> str | None:
        """The id of the last item."""
        return self._items.last

    def close(self) -> None:
        """End the response, if there is one; nothing more is sent."""
        if self._task is not None:
            self._task.cancel()

    @property
    def _active(self) -> Response | None:
        return None if self._task is None or self._task.done() else self._response

    async def _respond(self, fields: ResponseFields) -> None:
        answers = self.settings.answers.updated(
            fields, fields.audio.output if fields.audio else None
        )
        self._check(answers, "response")
        name = f"{self._caller.request_id}_{next(self._numbers)}"
        self._response = Response(
            f"resp_{name}",
            self._models,
            lambda part: self._part(f"{name}-{part}"),
            self._items,
            answers,
            send=self._send,
            metadata=fields.metadata,
            keeps=fields.conversation == "auto",
        )
        self._task = asyncio.create_task(self._response.run(), name=f"galley-{name}")
        self._task.add_done_callback(_report)
        # It has to begin: a task that is cancelled before it begins sends no last event.
        await asyncio.sleep(0)

    def _check(self, answers: Answers, where: str) -> None:
        """Raise RequestError for speech that no model can produce."""
        if answers.modality == "text":
            return
        if self._voice is None:
            raise RequestError(
                "output_modalities is ['audio'], but no model of this server speaks: serve a voice, or "
                "take ['text']",
                param=f"{where}.output_modalities",
            )
        voice_of(answers.voice, self._voice, param=f"{where}.audio.output.voice")

    async def _interrupt(self) -> None:
        """Stop the response that the caller speaks over, and forget what was not heard of it."""
        response = self._response
        if response is None:
            return
        at = response.heard(time.monotonic())
        plays = response.first_audio is not None and at < response.milliseconds
        if self._active is None and not plays:
            return
        await self._stop("turn_detected")
        if response.message is not None and response.message.spoken:
            await self._truncate(response.message.id, at)

    async def _truncate(self, item_id: str, milliseconds: int) -> None:
        item = self._items.named(item_id)
        if item.role != "assistant" or not item.spoken:
            raise RequestError(
                f"item {item_id[:100]!r} is no audio of the assistant", param="item_id"
            )
        item.cut(milliseconds)
        about = {"item_id": item_id, "content_index": 0, "audio_end_ms": milliseconds}
        await self._send({"type": "conversation.item.truncated", **about})

    async def _stop(self, reason: Reason) -> None:
        response, task = self._active, self._task
        if response is not None and task is not None:
            response.stop(reason)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _part(self, request_id: str) -> Caller:
        """Return the caller of a part of a response, with a record and times of its own."""
        return dataclasses.replace(
            self._caller,
            request_id=request_id,
            record={},
            headers={},
            arrived=time.monotonic(),
            trace=Trace(),
            cached=None,
        )


def _report(task: asyncio.Task[None]) -> None:
    """Log what ended a response's task, unless the client is gone, which its connection handles."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, GalleyError):
        log.error("a response failed", exc_info=error)

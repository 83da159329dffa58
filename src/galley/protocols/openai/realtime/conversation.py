"""A conversation over ``/v1/realtime``: what the client and the caller's speech change in it."""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.gateway.draft import Draft
from galley.gateway.tenants import Account
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
from galley.protocols.openai.realtime.outbox import Outbox, Send
from galley.protocols.openai.realtime.prepared import Prepared
from galley.protocols.openai.realtime.response import Models, Reason, Response
from galley.protocols.openai.realtime.schemas import Event
from galley.protocols.openai.realtime.silence import Silence
from galley.protocols.openai.realtime.turn_ends import TurnEnds, report
from galley.protocols.openai.realtime.turn_times import TurnTimes
from galley.service.voice_requests import voice_of
from galley.tools.conversation import Conversation as ChatConversation
from galley.types.model_info import ModelInfo

if TYPE_CHECKING:
    from galley.speech.live_events import LiveEvent

BUSY: Final = "conversation_already_has_active_response"
"""OpenAI's code of an error: a response is created while there is one."""


class CallerAudio(Protocol):
    """The interface that a conversation needs of its caller's live audio."""

    async def end_after(self, turn: int, silence_ms: int) -> None:
        """End a turn that has paused once its silence has lasted this long."""

    def received_at(self, milliseconds: int) -> float:
        """Return when some audio of the stream arrived, on the monotonic clock."""

    async def end_silence(self, wanted: Callable[[], bool]) -> bool:
        """End a turn in which nobody has spoken; return whether it is ended.

        Args:
            wanted: says whether it still is to be ended.
        """


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
        audio: CallerAudio,
        *,
        send: Send,
    ) -> None:
        """Begin an empty conversation.

        Args:
            settings: its first settings.
            models: the models that answer and speak.
            caller: who is connected.
            voice: describes the model that speaks, if there is one.
            audio: the live stream of the caller's audio.
            send: sends an event to the client.
        """
        self.settings = settings
        self._models, self._caller, self._voice = models, caller, voice
        self._send, self._audio = send, audio
        self._items = Items()
        self._numbers = itertools.count(1)
        self._response: Response | None = None
        self._task: asyncio.Task[None] | None = None
        self._prepared: Prepared | None = None
        self._turn_ends = TurnEnds(
            models.language,
            # Readings are never charged: they only make answers sooner.
            lambda part: self._part(f"{caller.request_id}_{part}", Draft(caller.account)),
            self._end_after,
        )
        self._turn, self._said = -1, ""
        """The turn that is being spoken, and its final words."""
        self._speaking = False
        self._owed = False
        """Whether the last turn is not answered, since the caller spoke on before its transcript came."""
        self._times: TurnTimes | None = None
        """The times of the turn that has paused last."""
        self._silence = Silence(self._prompt_caller)

    async def handle(self, event: Event) -> None:
        """Honor a client's event, other than those of the audio buffer and the session.

        Raises:
            RequestError: it cannot be honored.
        """
        self._drop_prepared()  # it would not know of the change
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
        """Return the settings after ``session.update``. Raises RequestError if they cannot be honored."""
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
            case live.SpeechStarted():
                self._silence.stop()
                self._speaking = True
                if self.settings.interrupt:
                    await self._interrupt()
                self._turn, self._said, self._times = event.turn, "", None
                self._read_ahead()
            case live.Delta() if event.turn == self._turn:  # the turn before may not be complete
                self._said += event.text
                self._read_ahead()
            case live.Paused():
                self._pause(event.turn, event.at_ms, event.text.strip(), item_id)
            case live.SpeechStopped():
                ended = event.spoken_to_ms
                self._times = self._times or TurnTimes(ended, self._audio.received_at(ended))
                self._times.endpoint = time.monotonic()
            case live.Resumed() | live.Failed():
                self._times = None
                self._turn_ends.resume()
                self._drop_prepared()
            case live.Committed():
                self._speaking = False
                self._items.add(Item(item_id, role="user", spoken=True, waits=True))
            case live.Completed():
                item = self._items.named(item_id)
                item.text, item.waits = event.text.strip(), False
                self._turn_ends.ended(item.text)
                if self._times is not None:
                    self._times.transcript = self._times.transcript or time.monotonic()
                await self._answer(item)
            case _:
                pass

    # The caller's turns.

    @property
    def _answers_turns(self) -> bool:
        """Whether the end of a turn begins a response."""
        settings = self.settings
        return settings.source.turns is not None and settings.create and self._active is None

    def _with(self, text: str) -> ChatConversation:
        """Return the conversation with what the caller is saying."""
        messages = [*self._items.messages(), {"role": "user", "content": text}]
        return self.settings.answers.conversation(messages)

    async def _end_after(self, turn: int, silence_ms: int) -> None:
        if self._times is not None:
            self._times.silence_ms = silence_ms
        await self._audio.end_after(turn, silence_ms)

    def _read_ahead(self) -> None:
        if self._answers_turns:
            self._turn_ends.warm(self._with(self._said.strip()))

    def _pause(self, turn: int, at_ms: int, text: str, item_id: str) -> None:
        """Prepare the answer to a turn that may be over, and judge whether it is."""
        self._drop_prepared()
        self._times = TurnTimes(at_ms, self._audio.received_at(at_ms), time.monotonic())
        eagerness = self.settings.source.eagerness
        if eagerness is not None and text:
            self._turn_ends.judge(turn, self._with(text), eagerness)
        if not text or not self._answers_turns:
            return
        items = self._items.fork(Item(item_id, role="user", spoken=True, text=text))
        draft = Draft(self._caller.account)
        response, task = self._begin(ResponseFields(), items, draft=draft, times=self._times)
        self._prepared = Prepared(text, item_id, self.settings, items, draft, response, task)

    async def _answer(self, item: Item) -> None:
        """Answer a turn that is over, with the prepared answer if it is to the same words."""
        prepared = self._prepared
        if not (item.text or self._owed) or not self._answers_turns:
            self._drop_prepared()
        elif self._speaking and self.settings.interrupt:  # the next turn is answered with this one
            self._owed = True
            self._drop_prepared()
        elif prepared is None or not prepared.accepted(item, self.settings):
            self._drop_prepared()
            times = self._times.of_another_answer() if self._times is not None else None
            await self._respond(ResponseFields(), times)
        else:
            self._prepared, self._owed = None, False
            self._response, self._task = prepared.response, prepared.task
            self._items.join(prepared.items, item.id)
            await prepared.response.release(self._items)
            if prepared.task.done():
                self._wait_for_speech(prepared.task)

    def _drop_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.task.cancel()

    # Silence.

    async def cleared(self) -> None:
        """Forget the turn that the client has discarded: nobody is speaking."""
        spoke, self._speaking = self._speaking, False
        if self._owed and self._answers_turns:
            await self._respond(ResponseFields())
        elif spoke and self._task is not None and self._task.done():
            self._wait_for_speech(self._task)

    def _wait_for_speech(self, task: "asyncio.Task[None]") -> None:
        """Begin to wait for the caller, who has heard a response to its end."""
        milliseconds, response = self.settings.source.idle_timeout_ms, self._response
        if milliseconds is None or response is None or task is not self._task:
            return
        if response.stopped or self._speaking:
            return
        plays = max(0.0, response.plays_until - time.monotonic())
        self._silence.wait(plays + milliseconds / 1000)

    async def _prompt_caller(self) -> None:
        """Respond to silence."""

        def silent() -> bool:
            return not self._speaking and self._active is None and self.settings.create

        if await self._audio.end_silence(silent) and self._active is None:
            await self._respond(ResponseFields())

    @property
    def last_item(self) -> str | None:
        """The id of the last item."""
        return self._items.last

    def close(self) -> None:
        """End the response, if there is one; nothing more is sent."""
        self._turn_ends.close()
        self._silence.close()
        self._drop_prepared()
        task, self._task = self._task, None  # nothing waits for the caller when it has ended
        if task is not None:
            task.cancel()

    @property
    def _active(self) -> Response | None:
        return None if self._task is None or self._task.done() else self._response

    async def _respond(self, fields: ResponseFields, times: TurnTimes | None = None) -> None:
        self._owed = False
        self._response, self._task = self._begin(fields, self._items, times=times)
        # It has to begin: a task that is cancelled before it begins sends no last event.
        await asyncio.sleep(0)

    def _begin(
        self,
        fields: ResponseFields,
        items: Items,
        *,
        draft: Draft | None = None,
        times: TurnTimes | None,
    ) -> "tuple[Response, asyncio.Task[None]]":
        """Begin a response to some items. With a ``draft``, nothing is sent until it is released."""
        self._silence.stop()
        account = draft or self._caller.account
        answers = self.settings.answers.updated(
            fields, fields.audio.output if fields.audio else None
        )
        self._check(answers, "response")
        name = f"{self._caller.request_id}_{next(self._numbers)}"
        response = Response(
            f"resp_{name}",
            self._models,
            lambda part: self._part(f"{name}-{part}", account),
            items,
            answers,
            Outbox(self._send, held=draft is not None),
            metadata=fields.metadata,
            keeps=fields.conversation == "auto",
            times=times if self.settings.source.timing else None,
        )
        task = asyncio.create_task(response.run(), name=f"galley-{name}")
        task.add_done_callback(report)
        task.add_done_callback(self._wait_for_speech)
        return response, task

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
                f"item {item_id[:100]!r} is not audio of the assistant", param="item_id"
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

    def _part(self, request_id: str, account: Account) -> Caller:
        """Return the caller of a part of a response, with a record and times of its own."""
        return dataclasses.replace(
            self._caller,
            request_id=request_id,
            account=account,
            record={},
            headers={},
            arrived=time.monotonic(),
            trace=Trace(),
            cached=None,
        )

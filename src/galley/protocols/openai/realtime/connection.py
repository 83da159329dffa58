"""One connection to ``/v1/realtime``: a client, and the live stream of its audio."""

import asyncio
import binascii
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from galley.errors import GalleyError, RequestError, Unavailable
from galley.gateway.call import Call
from galley.gateway.lifecycle import Lifecycle
from galley.protocols.common.errors import ApiError, envelope
from galley.protocols.common.validate import validate
from galley.protocols.http.body import LARGE
from galley.protocols.http.errors import ClientGone
from galley.protocols.http.websocket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NORMAL,
    NOT_ALLOWED,
    TRY_AGAIN,
    EventSocket,
)
from galley.protocols.openai.realtime.conversation import Conversation
from galley.protocols.openai.realtime.conversation_schemas import (
    CONVERSATION_EVENTS,
    Answers,
    ConversationSettings,
    ConversationUpdate,
)
from galley.protocols.openai.realtime.live_messages import BUFFER, LiveMessages
from galley.protocols.openai.realtime.party import Party
from galley.protocols.openai.realtime.schemas import (
    EVENTS,
    MAX_EVENT_ID,
    Append,
    FlatSessionUpdate,
    SessionUpdate,
    Settings,
)

if TYPE_CHECKING:
    from galley.speech.live_events import LiveEvent
    from galley.speech.model import SpeechModel

log = logging.getLogger("galley.server")

_BEHIND_SECONDS: Final = 30.0
_QUIET_SECONDS: Final = 5.0
"""Seconds without an event after which redacted text is given out, though more may follow."""
_FIRST: Final = asyncio.FIRST_COMPLETED


class Connection:
    """A connected client, and the live stream of its audio."""

    def __init__(
        self,
        socket: EventSocket,
        call: Call,
        model: "SpeechModel",
        party: Party | None,
        *,
        flat: bool,
        idle_seconds: float,
    ) -> None:
        """Create the live stream; a client silent for ``idle_seconds`` is considered gone.

        Args:
            party: the models of a conversation; None: audio is only transcribed.
        """
        from galley.speech.live_redaction import LiveRedactor
        from galley.speech.live_stream import LiveStream
        from galley.speech.options import TurnOptions
        from galley.speech.redaction import check_kinds

        self._socket = socket
        self._idle_seconds = idle_seconds
        self._call = call
        self._id = call.caller.request_id
        self._settings = Settings(
            call.served.name,
            TurnOptions(),
            flat=flat and party is None,
            converses=party is not None,
        )
        session = model.live(
            self._settings.options(), self._id, cache_salt=call.caller.cache_salt()
        )
        self._stream: LiveStream = LiveStream(
            self._call,
            session,
            on_events=self._send_events,
            timeout=_BEHIND_SECONDS,
        )
        self._numbers = itertools.count(1)
        self._handling = asyncio.Lock()
        """Held while a client's event is handled."""
        self._event_id: str | None = None
        """The id of the client's event that is being handled."""
        self._messages = LiveMessages(self._id)
        self._conversation = None if party is None else self._conversation_with(party)
        kinds = check_kinds(call.served.settings.redact)
        self._redactor = LiveRedactor(kinds) if kinds else None
        self._quiet: asyncio.TimerHandle | None = None
        """Gives out what the redactor holds back, once nobody has spoken for a while."""
        self._flushes: set[asyncio.Task[None]] = set()

    def _conversation_with(self, party: Party) -> Conversation:
        answers = Answers(
            modality="text" if party.voice is None else "audio", instructions=party.instructions
        )
        settings = ConversationSettings(model=party.name, source=self._settings, answers=answers)
        caller = self._call.caller
        return Conversation(settings, party.models, caller, party.voice, self, send=self._send)

    async def serve(self, lifecycle: Lifecycle) -> None:
        """Serve the connection until it ends."""
        code, reason, finish = NORMAL, "", "stop"
        try:
            code, reason = await self._until_over(lifecycle)
        except ClientGone:
            finish = "cancelled"
        except Exception as error:
            if not isinstance(error, GalleyError):
                log.exception("stream %s failed", self._id)
            code = TRY_AGAIN if isinstance(error, Unavailable) else INTERNAL_ERROR
            if isinstance(error, ApiError):  # the client may send no more
                code = NOT_ALLOWED
            finish = "error"
            with suppress(ClientGone):
                await self._refuse(error)
        finally:
            if self._conversation is not None:
                self._conversation.close()
            self._call.close()
            self._call.audio_ended(
                self._stream.seconds, finish, turns=self._messages.turns, **self._redacted()
            )
        await self._socket.close(code, reason)

    async def _until_over(self, lifecycle: Lifecycle) -> tuple[int, str]:
        """Serve until the stream is over, and return the close code and reason.

        Raises:
            ClientGone: the client hung up.
            Unavailable, EngineError: the stream cannot continue.
        """
        await self._send(self._session_event("created"))
        working = asyncio.create_task(self._stream.run())
        listening = asyncio.create_task(self._listen())
        draining = asyncio.create_task(lifecycle.draining())
        try:
            await asyncio.wait({working, listening, draining}, return_when=_FIRST)
            if draining.done() and not working.done() and not listening.done():
                async with self._handling:  # a thread that processes audio cannot be cancelled
                    listening.cancel()
                await asyncio.wait({listening})
                await self._drain(working)
                return GOING_AWAY, "the server is shutting down"
            if working.done():
                working.result()
            reason = listening.result()
            if reason:  # the client is silent, but still connected
                await self._drain(working)
            return NORMAL, reason
        finally:
            for task in (working, listening, draining):
                task.cancel()
            await asyncio.gather(working, listening, draining, return_exceptions=True)

    async def _drain(self, working: "asyncio.Task[None]") -> None:
        """Finish the transcript of the audio received so far."""
        with suppress(RequestError):  # there was no audio
            await self._stream.commit()
        settled = asyncio.create_task(self._stream.settled())
        await asyncio.wait({settled, working}, return_when=_FIRST)
        settled.cancel()
        if working.done():
            working.result()
        await self._send_remaining()

    async def _listen(self) -> str:
        """Handle the client's events until they end, and return the reason.

        Raises:
            ClientGone: the client hung up.
        """
        while True:
            self._event_id = None
            try:
                event = await self._socket.receive(self._idle_seconds)
                if event is None:
                    return ""
                async with self._handling:
                    await self._handle(event)
            except TimeoutError:
                return f"nothing received for {self._idle_seconds:g} s"
            except RequestError as error:
                await self._refuse(error)

    async def _handle(self, event: dict[str, Any]) -> None:
        kind, event_id = event.get("type"), event.get("event_id")
        if isinstance(event_id, str):
            self._event_id = event_id[:MAX_EVENT_ID]
        known = EVENTS if self._conversation is None else CONVERSATION_EVENTS
        if not isinstance(kind, str) or kind not in known:
            raise RequestError(
                f"Unknown event type {str(kind)[:64]!r}; known: {', '.join(known)}", param="type"
            )
        parsed = validate(known[kind], event)
        match parsed:
            case ConversationUpdate() if self._conversation is not None:
                await self._configure_conversation(self._conversation, parsed)
            case _ if self._conversation is not None and not kind.startswith(BUFFER):
                await self._conversation.handle(parsed)
            case Append():
                audio = parsed.audio
                large = len(audio) > LARGE
                data = await asyncio.to_thread(_decoded, audio) if large else _decoded(audio)
                await self._stream.append(data)
            case SessionUpdate() | FlatSessionUpdate():
                settings = self._settings.updated(parsed)
                await self._configure(settings)
            case _ if kind.endswith("commit"):
                await self._stream.commit()
            case _:
                await self._stream.clear()
                if self._redactor is not None:
                    self._redactor.discard()
                if self._conversation is not None:
                    await self._conversation.cleared()
                await self._send({"type": f"{BUFFER}cleared"})

    async def _configure(self, settings: Settings) -> None:
        if settings.interim and self._redactor is not None:
            raise RequestError(
                "This server redacts transcripts (setting redact): there are no interim texts",
                param="session.include",
            )
        try:
            await self._stream.configure(settings.coding, settings.rate, settings.options())
        except RequestError as error:
            raise settings.located(error) from None
        self._settings = settings
        await self._send(self._session_event("updated"))

    async def _configure_conversation(
        self, conversation: Conversation, update: ConversationUpdate
    ) -> None:
        before = conversation.settings
        conversation.settings = conversation.configured(update)
        try:
            await self._configure(conversation.settings.source)
        except RequestError:
            conversation.settings = before
            raise

    # What the conversation does with the stream.

    async def end_after(self, turn: int, silence_ms: int) -> None:
        """Implement :meth:`galley.protocols.openai.realtime.conversation.CallerAudio.end_after`."""
        await self._stream.end_after(turn, silence_ms)

    def received_at(self, milliseconds: int) -> float:
        """Implement :meth:`galley.protocols.openai.realtime.conversation.CallerAudio.received_at`."""
        later = max(0.0, self._stream.seconds - milliseconds / 1000)
        return self._stream.received - later

    async def end_silence(self, wanted: Callable[[], bool]) -> bool:
        """Implement :meth:`galley.protocols.openai.realtime.conversation.CallerAudio.end_silence`."""
        async with self._handling:
            if not wanted() or not self._stream.has_turn:  # without one, the client sends no audio
                return False
            idle, now = self._settings.idle_timeout_ms or 0, round(1000 * self._stream.seconds)
            about = {"audio_start_ms": max(0, now - idle), "audio_end_ms": now}
            item_id = self._messages.item_id(self._stream.turn)
            await self._send({"type": f"{BUFFER}timeout_triggered", **about, "item_id": item_id})
            with suppress(RequestError):
                await self._stream.commit()
        return True

    # Messages to the client.

    async def _send_events(self, events: "Sequence[LiveEvent]") -> None:
        if self._redactor is not None:
            events = self._redactor.take(events)
            self._wait_for_quiet()
        await self._say(events)

    async def _say(self, events: "Sequence[LiveEvent]") -> None:
        for event in events:
            before = None if self._conversation is None else self._conversation.last_item
            for message in self._messages.of(event, self._settings, before):
                await self._send(message)
            if self._conversation is not None:
                await self._conversation.heard(event, self._messages.item_id(event.turn))

    def _wait_for_quiet(self) -> None:
        """Give out what is held back when nothing has been heard for :data:`_QUIET_SECONDS`."""
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._flush)

    def _flush(self) -> None:
        task = asyncio.create_task(self._send_remaining())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _send_remaining(self) -> None:
        """Send what the redactor holds back."""
        if self._redactor is not None:
            with suppress(ClientGone):
                await self._say(self._redactor.rest())

    def _redacted(self) -> dict[str, Any]:
        """Return what is redacted, and stop the timer: the connection is over."""
        if self._redactor is None:
            return {}
        if self._quiet is not None:
            self._quiet.cancel()
        kinds = self._redactor.kinds
        return {"redact": ",".join(kinds), "redacted": self._redactor.counts}

    def _session_event(self, what: str) -> dict[str, Any]:
        kind = "transcription_session" if self._settings.flat else "session"
        if self._conversation is not None:
            shown = self._conversation.settings.shown(f"sess_{self._id}")
            return {"type": f"session.{what}", "session": shown}
        return {"type": f"{kind}.{what}", "session": self._settings.shown(f"sess_{self._id}")}

    async def _refuse(self, error: Exception) -> None:
        fields = envelope(error)["error"]
        await self._send({"type": "error", "error": {**fields, "event_id": self._event_id}})

    async def _send(self, event: Mapping[str, Any]) -> None:
        await self._socket.send({"event_id": f"event_{self._id}_{next(self._numbers)}", **event})


def _decoded(audio: str) -> bytes:
    try:
        return binascii.a2b_base64(audio, strict_mode=True)
    except ValueError as error:
        raise RequestError(f"audio is not base64: {error}", param="audio") from None

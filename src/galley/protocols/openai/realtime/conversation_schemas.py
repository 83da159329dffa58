"""The events and settings of a conversation over ``/v1/realtime``."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from galley.errors import RequestError
from galley.protocols.common.messages import MAX_TOOLS, TOOL_NAME_PATTERN, Strict
from galley.protocols.openai.realtime import schemas
from galley.protocols.openai.realtime.schemas import (
    AudioInput,
    Event,
    Format,
    Include,
    Settings,
)
from galley.service.voice_requests import FASTEST, SLOWEST
from galley.tools.conversation import Conversation, Tool, ToolChoice

Modality: TypeAlias = Literal["text", "audio"]
Modalities: TypeAlias = Annotated[list[Modality], Meta(min_length=1, max_length=1)]
Words: TypeAlias = Annotated[str, Meta(max_length=100_000)]
ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
MaxTokens: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)] | Literal["inf"] | None


class FunctionTool(Strict, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def tool(self) -> Tool:
        """Return the tool as conversations have it."""
        return Tool(name=self.name, description=self.description, parameters=self.parameters)


class NamedTool(Strict, frozen=True, kw_only=True):
    """``tool_choice`` that names a function."""

    type: Literal["function"]
    name: str


class VoiceId(Strict, frozen=True, kw_only=True):
    """``voice`` as an object."""

    id: str


class AudioOutput(Strict, frozen=True, kw_only=True):
    """``audio.output`` of a session or of a response."""

    format: Format | None = None
    voice: str | VoiceId | None = None
    speed: Annotated[float, Meta(ge=SLOWEST, le=FASTEST)] | None = None


class SessionAudio(Strict, frozen=True, kw_only=True):
    """``session.audio``."""

    input: AudioInput | None = None
    output: AudioOutput | None = None


class ResponseAudio(Strict, frozen=True, kw_only=True):
    """``response.audio``."""

    output: AudioOutput | None = None


class Answering(Strict, frozen=True, kw_only=True):
    """How the model answers: fields that sessions and responses share."""

    instructions: Words | UnsetType | None = UNSET
    output_modalities: Modalities | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: MaxTokens | UnsetType = UNSET


class ConversationSession(Answering, frozen=True, kw_only=True):
    """``session`` of ``session.update``."""

    type: Literal["realtime"]
    model: str | None = None
    audio: SessionAudio | None = None
    include: Include | None = None
    truncation: Literal["auto"] | None = None
    tracing: None = None


class ResponseFields(Answering, frozen=True, kw_only=True):
    """``response`` of ``response.create``."""

    audio: ResponseAudio | None = None
    conversation: Literal["auto", "none"] = "auto"
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None


class ConversationUpdate(Event, frozen=True, kw_only=True):
    """``session.update``."""

    session: ConversationSession


class TextContent(Strict, frozen=True, kw_only=True):
    """A part of a message. Audio is sent through the input audio buffer."""

    type: Literal["input_text", "output_text", "text"]
    text: Words


class NewItem(Strict, frozen=True, kw_only=True):
    """``item`` of ``conversation.item.create``: a message, a function's call or its output."""

    type: Literal["message", "function_call", "function_call_output"]
    id: ItemId | None = None
    object: Literal["realtime.item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None
    role: Literal["system", "user", "assistant"] | None = None
    content: Annotated[list[TextContent], Meta(min_length=1, max_length=64)] | None = None
    call_id: ItemId | None = None
    name: Annotated[str, Meta(pattern=TOOL_NAME_PATTERN)] | None = None
    arguments: Words | None = None
    output: Words | None = None

    def __post_init__(self) -> None:
        needed = {
            "message": ("role", "content"),
            "function_call": ("name", "arguments", "call_id"),
            "function_call_output": ("call_id", "output"),
        }[self.type]
        for name in needed:
            if getattr(self, name) is None:
                raise RequestError(f"{name} is missing in a {self.type}", param=name)


class ItemCreate(Event, frozen=True, kw_only=True):
    """``conversation.item.create``; ``previous_item_id`` "root" puts the item first."""

    item: NewItem
    previous_item_id: str | None = None


class ItemNamed(Event, frozen=True, kw_only=True):
    """``conversation.item.delete`` and ``conversation.item.retrieve``."""

    item_id: str


class ItemTruncate(Event, frozen=True, kw_only=True):
    """``conversation.item.truncate``: what was heard of an assistant's message."""

    item_id: str
    content_index: Literal[0]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(Event, frozen=True, kw_only=True):
    """``response.create``."""

    response: ResponseFields | None = None


class ResponseCancel(Event, frozen=True, kw_only=True):
    """``response.cancel``."""

    response_id: str | None = None


CONVERSATION_EVENTS: Final[dict[str, type[Event]]] = {
    **{name: kind for name, kind in schemas.EVENTS.items() if name.startswith("input_")},
    "session.update": ConversationUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.delete": ItemNamed,
    "conversation.item.retrieve": ItemNamed,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How responses are made.

    Attributes:
        modality: what a message is: text, or audio with its transcript.
        format, rate: type and sample rate of the audio.
        voice: name of the voice; None: the model's first.
        choice, named, parallel: see :class:`galley.tools.conversation.Conversation`.
        max_tokens: limit of a response's tokens; None: the model's.
    """

    modality: Modality
    instructions: str = ""
    format: str = "audio/pcm"
    rate: int = 24_000
    voice: str | None = None
    speed: float = 1.0
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = "auto"
    named: str | None = None
    parallel: bool = True
    max_tokens: int | None = None

    def updated(self, given: Answering, audio: AudioOutput | None) -> "Answers":
        """Return the settings changed by those that are given.

        Raises:
            RequestError: they contradict each other, or a rate is not that of OpenAI's API.
        """
        changes: dict[str, Any] = {}
        if given.instructions is not UNSET:
            changes["instructions"] = given.instructions or ""
        if given.output_modalities is not None:
            changes["modality"] = given.output_modalities[0]
        if given.tools is not None:
            changes["tools"] = tuple(one.tool() for one in given.tools)
        if isinstance(given.tool_choice, NamedTool):
            changes |= {"choice": "auto", "named": given.tool_choice.name}
        elif given.tool_choice is not None:
            changes |= {"choice": given.tool_choice, "named": None}
        if given.parallel_tool_calls is not None:
            changes["parallel"] = given.parallel_tool_calls
        if given.max_output_tokens is not UNSET:
            limit = given.max_output_tokens
            changes["max_tokens"] = limit if isinstance(limit, int) else None
        if audio is not None:
            changes |= _of_audio(audio, self)
        answers = dataclasses.replace(self, **changes)
        answers.conversation([{"role": "user", "content": ""}])
        return answers

    def conversation(self, messages: list[dict[str, Any]]) -> Conversation:
        """Return the messages with the tools. Raises RequestError if the tools contradict each other."""
        head = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return Conversation(
            messages=[*head, *messages],
            tools=self.tools,
            choice=self.choice,
            named=self.named,
            parallel=self.parallel,
        )

    def shown(self) -> dict[str, Any]:
        """Return the fields that sessions and responses have in common."""
        return {
            "output_modalities": [self.modality],
            "max_output_tokens": self.max_tokens or "inf",
        }

    def shown_audio(self) -> dict[str, Any]:
        """Return ``audio.output``."""
        form: dict[str, Any] = {"type": self.format}
        if self.format == "audio/pcm":
            form["rate"] = self.rate
        return {"format": form, "voice": self.voice or "default"}


@dataclass(frozen=True, kw_only=True)
class ConversationSettings:
    """All settings of a conversation.

    Attributes:
        model: name of the language model.
        source: how audio is transcribed.
        answers: how responses are made.
        create, interrupt: whether the end of a turn begins a response, and its beginning ends one.
    """

    model: str
    source: Settings
    answers: Answers
    create: bool = True
    interrupt: bool = True

    def updated(self, session: ConversationSession) -> "ConversationSettings":
        """Return the settings changed by ``session.update``.

        Raises:
            RequestError: a value is out of range, or another model is named; ``param`` names it.
        """
        if session.model not in (None, self.model):
            raise RequestError(
                f"this connection uses {self.model!r}; choose another model in the URL: ?model=...",
                param="session.model",
            )
        audio = session.audio or SessionAudio()
        part = schemas.Session(
            type="transcription", audio=schemas.Audio(input=audio.input), include=session.include
        )
        update = schemas.SessionUpdate(type="session.update", session=part)
        turns = audio.input.turn_detection if audio.input is not None else UNSET
        create, interrupt = self.create, self.interrupt
        if isinstance(turns, schemas.ServerVad | schemas.SemanticVad):
            create = create if turns.create_response is None else turns.create_response
            interrupt = interrupt if turns.interrupt_response is None else turns.interrupt_response
        return dataclasses.replace(
            self,
            source=self.source.updated(update),
            answers=self.answers.updated(session, audio.output),
            create=create,
            interrupt=interrupt,
        )

    def shown(self, session_id: str) -> dict[str, Any]:
        """Return ``session`` of the server's events."""
        answers, source = self.answers, self.source.shown(session_id)
        listening = source["audio"]["input"]
        if listening["turn_detection"] is not None:
            listening["turn_detection"] |= {
                "create_response": self.create,
                "interrupt_response": self.interrupt,
            }
        tools = [
            {"type": "function", "name": tool.name, "description": tool.description or ""}
            | {"parameters": tool.schema}
            for tool in answers.tools
        ]
        named = {"type": "function", "name": answers.named} if answers.named else answers.choice
        spoken = {**answers.shown_audio(), "speed": answers.speed}
        return {
            **{name: source[name] for name in ("warnings",) if name in source},
            "id": session_id,
            "object": "realtime.session",
            "type": "realtime",
            "model": self.model,
            **answers.shown(),
            "instructions": answers.instructions,
            "tools": tools,
            "tool_choice": named,
            "audio": {"input": listening, "output": spoken},
            "include": source["include"],
        }


def _of_audio(audio: AudioOutput, before: Answers) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if audio.format is not None:
        rate = audio.format.hertz(before.format, before.rate)
        if audio.format.type == "audio/pcm" and rate != 24_000:
            raise RequestError(
                f"audio.output.format.rate is {rate}; audio/pcm is sent at 24,000 Hz",
                param="audio.output.format.rate",
            )
        changes |= {"format": audio.format.type, "rate": rate}
    if audio.voice is not None:
        changes["voice"] = audio.voice.id if isinstance(audio.voice, VoiceId) else audio.voice
    if audio.speed is not None:
        changes["speed"] = audio.speed
    return changes

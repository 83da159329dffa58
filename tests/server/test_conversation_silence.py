"""What a conversation does when an answer is prepared, or nobody speaks."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from galley.errors import Unavailable
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel
from galley.protocols.openai.realtime.conversation import Conversation
from galley.protocols.openai.realtime.conversation_schemas import (
    Answers,
    ConversationSettings,
    ResponseCreate,
)
from galley.protocols.openai.realtime.response import Models
from galley.protocols.openai.realtime.schemas import Settings
from galley.speech.live_events import Committed, Completed, Paused, SpeechStarted, SpeechStopped
from galley.speech.options import TurnOptions

IDLE_MS = 20
CREATE = ResponseCreate(type="response.create")


class SilentAudio:
    """Audio in which nobody speaks unless the test says so."""

    def __init__(self) -> None:
        self.silence_ended = asyncio.Event()
        self.interruption: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def end_after(self, turn: int, silence_ms: int) -> None:
        raise AssertionError("nothing is judged")

    def received_at(self, milliseconds: int) -> float:
        return 0.0

    async def end_silence(self, wanted: Callable[[], bool]) -> bool:
        if self.interruption is not None:
            await self.interruption()
        self.silence_ended.set()
        return wanted()


class Talk:
    """A conversation whose language model fails each time, or never comes."""

    def __init__(self, *, hangs: bool = False, idle_ms: int | None = None) -> None:
        self.audio, self.sent = SilentAudio(), list[Mapping[str, Any]]()
        self.requests = 0
        self._hangs = hangs
        settings = ConversationSettings(
            model="chat",
            source=Settings("ears", TurnOptions(), idle_timeout_ms=idle_ms, converses=True),
            answers=Answers(modality="text"),
        )
        models = Models(language=self._find, voice=None)
        self.conversation = Conversation(
            settings, models, Caller("c"), None, self.audio, send=self._send
        )

    async def _find(self) -> ServedModel:
        self.requests += 1
        if self._hangs:
            await asyncio.Event().wait()
        raise Unavailable(f"failure {self.requests}", retry_after=1)

    async def _send(self, event: Mapping[str, Any]) -> None:
        self.sent.append(event)

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [event for event in self.sent if event["type"] == kind]

    async def done(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.of("response.done")) < count:
                await asyncio.sleep(0.001)

    async def hear(self, *events: Any) -> None:
        for event in events:
            await self.conversation.heard(event, f"item_{event.turn}")


async def settled() -> None:
    """Let the tasks that can go on do so."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_a_prepared_answer_that_failed_is_made_again() -> None:
    async def run() -> None:
        talk = Talk()
        await talk.hear(SpeechStarted(0, 0), Paused(0, "hello", 900))
        async with asyncio.timeout(30):
            while talk.requests < 2:  # the prompt is read ahead, and the answer prepared
                await asyncio.sleep(0.001)
        await settled()
        await talk.hear(SpeechStopped(0, 1_400, 900), Committed(0), Completed(0, "hello", 1.4))
        await talk.done(1)
        talk.conversation.close()
        assert len(talk.of("response.created")) == 1
        [done] = talk.of("response.done")
        message = done["response"]["status_details"]["error"]["message"]
        assert message == "failure 3"

    asyncio.run(run())


@pytest.mark.parametrize("rest", ["how are you?", "", None])
def test_a_turn_whose_caller_speaks_on_is_answered_with_the_next(rest: str | None) -> None:
    """None: the client clears the next one."""

    async def run() -> None:
        talk = Talk()
        await talk.hear(SpeechStarted(0, 0), SpeechStopped(0, 1_400, 900), Committed(0))
        await talk.hear(SpeechStarted(1, 1_500), Completed(0, "hello", 1.4))
        await settled()
        assert not talk.of("response.created")
        if rest is None:
            await talk.conversation.cleared()
        else:
            await talk.hear(SpeechStopped(1, 2_500, 2_000), Committed(1), Completed(1, rest, 1.0))
        await talk.done(1)
        await talk.hear(SpeechStarted(2, 3_000), Committed(2), Completed(2, "", 1.0))
        await settled()
        talk.conversation.close()
        assert len(talk.of("response.created")) == 1

    asyncio.run(run())


def test_a_closed_conversation_waits_for_nobody() -> None:
    async def run() -> None:
        talk = Talk(hangs=True, idle_ms=IDLE_MS)
        await talk.conversation.handle(CREATE)
        talk.conversation.close()
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert not talk.audio.silence_ended.is_set()
        assert talk.requests <= 1

    asyncio.run(run())


def test_after_a_turn_is_cleared_silence_is_waited_for_again() -> None:
    async def run() -> None:
        talk = Talk(idle_ms=IDLE_MS)
        await talk.hear(SpeechStarted(0, 0))
        await talk.conversation.handle(CREATE)
        await talk.done(1)
        await asyncio.sleep(5 * IDLE_MS / 1000)
        assert not talk.audio.silence_ended.is_set()  # somebody is speaking
        await talk.conversation.cleared()
        await asyncio.wait_for(talk.audio.silence_ended.wait(), 30)
        await talk.done(2)
        talk.conversation.close()

    asyncio.run(run())


def test_who_begins_to_speak_when_the_time_is_over_is_not_interrupted() -> None:
    async def run() -> None:
        talk = Talk(idle_ms=IDLE_MS)
        talk.audio.interruption = lambda: talk.hear(SpeechStarted(0, 0))
        await talk.conversation.handle(CREATE)
        await talk.done(1)
        await asyncio.wait_for(talk.audio.silence_ended.wait(), 30)
        await settled()
        talk.conversation.close()
        assert len(talk.of("response.created")) == 1

    asyncio.run(run())

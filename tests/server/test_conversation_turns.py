"""How turns of a conversation end: eagerness, and events that are kept until it is certain."""

import asyncio
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from galley.errors import RequestError
from galley.protocols.openai.realtime.eagerness import (
    DEFAULT_SILENCE_MS,
    UNSURE_MS,
    Eagerness,
    longest_silence_ms,
    silence_ms,
)
from galley.protocols.openai.realtime.items import Item, Items
from galley.protocols.openai.realtime.outbox import Outbox
from galley.protocols.openai.realtime.schemas import (
    Audio,
    AudioInput,
    SemanticVad,
    ServerVad,
    Session,
    SessionUpdate,
    Settings,
)
from galley.protocols.openai.realtime.sentence_ends import SentenceEnds
from galley.protocols.openai.realtime.turn_ends import last_turn_alone
from galley.protocols.openai.realtime.turn_times import TurnTimes
from galley.speech.options import TurnOptions
from galley.tools.conversation import Conversation, Tool


@pytest.mark.parametrize("eagerness", get_args(Eagerness))
def test_the_likelier_the_end_the_shorter_the_silence(eagerness: Eagerness) -> None:
    waits = [silence_ms(10.0**power, eagerness) for power in range(0, -30, -1)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == silence_ms(0.0, eagerness) == longest_silence_ms(eagerness)


def test_the_eager_wait_less() -> None:
    for probability in (0.5, 0.02, 1e-3, 1e-5, 1e-9):
        waits = [silence_ms(probability, level) for level in ("high", "medium", "low")]
        assert waits == sorted(waits)
        assert silence_ms(probability, "auto") == waits[1]
    assert silence_ms(0.001, "auto") == 2 * UNSURE_MS  # a tenth of what is enough
    assert [longest_silence_ms(level) for level in ("high", "medium", "low")] == [
        2_000,
        4_000,
        8_000,
    ]


def test_a_mark_at_the_end_of_a_transcript_makes_the_end_of_a_turn_likelier() -> None:
    ends = SentenceEnds()
    assert ends.weighed(0.02, "It is done. ") == pytest.approx(0.06)
    assert ends.weighed(0.02, "It is") == pytest.approx(0.002)
    assert ends.weighed(0.02, "It is...") == pytest.approx(0.002)
    assert ends.weighed(0.5, "Is it?") == 1.0
    assert ends.weighed(0.0, "It is.") == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "It is.",
        '"It is."',
        "(It is.)",
        "\u201eFertig.\u201d",
        "\u0646\u0639\u0645\u061f",
        "\u0939\u0948\u0964",
    ],
)
def test_sentences_end_with_marks_of_many_scripts_and_quotes_after_them(text: str) -> None:
    assert SentenceEnds().weighed(0.02, text) == pytest.approx(0.06)


def test_a_turn_is_judged_without_those_before_it() -> None:
    system, *turns = [
        {"role": role, "content": role} for role in ("system", "user", "assistant", "user")
    ]
    tools = (Tool(name="look"),)
    judged = last_turn_alone(Conversation(messages=[system, *turns], tools=tools))
    assert (judged.messages, judged.tools) == ([system, turns[-1]], tools)
    assert last_turn_alone(Conversation(messages=turns)).messages == turns[-1:]
    assert last_turn_alone(Conversation(messages=turns[:1])).messages == turns[:1]


def test_a_recognizer_that_writes_no_marks_says_nothing_about_ends() -> None:
    ends = SentenceEnds()
    for _ in range(3):
        assert ends.weighed(0.02, "it is") < 0.02
        ends.take("it is done")
    assert ends.weighed(0.02, "it is") == 0.02
    ends.take("Yes. And")  # it writes some, after all
    assert ends.weighed(0.02, "it is") < 0.02


def updated(settings: Settings, turns: ServerVad | SemanticVad | None) -> Settings:
    audio = Audio(input=AudioInput(turn_detection=turns))
    session = Session(type="transcription", audio=audio)
    return settings.updated(SessionUpdate(type="session.update", session=session))


def test_settings_of_turn_detection_replace_each_other() -> None:
    settings = Settings("ears", TurnOptions(), converses=True)
    semantic = updated(settings, SemanticVad(eagerness="high"))
    shown = semantic.shown("s")["audio"]["input"]["turn_detection"]
    assert shown == {"type": "semantic_vad", "eagerness": "high"}
    assert semantic.options().turns.silence_duration_ms == DEFAULT_SILENCE_MS
    assert semantic.options().pauses
    assert updated(semantic, SemanticVad()).eagerness == "high"
    silence = updated(semantic, ServerVad(idle_timeout_ms=5_000))
    assert (silence.turns, silence.eagerness) == (TurnOptions(), None)
    assert silence.shown("s")["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 5_000
    assert updated(silence, ServerVad(threshold=0.6)).idle_timeout_ms == 5_000
    assert updated(silence, ServerVad(idle_timeout_ms=None)).idle_timeout_ms is None
    none = updated(silence, None)
    assert (none.turns, none.idle_timeout_ms, none.options().pauses) == (None, None, False)


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        (SemanticVad(), "semantic_vad needs a language model"),
        (ServerVad(idle_timeout_ms=6_000), "idle"),
    ],
)
def test_a_transcription_session_has_no_model_to_judge(
    turns: ServerVad | SemanticVad, says: str
) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        updated(Settings("ears", TurnOptions()), turns)
    assert (refused.value.param or "").startswith("session.audio.input.turn_detection.")
    assert not Settings("ears", TurnOptions()).options().pauses


def test_an_outbox_keeps_the_order_of_what_comes_while_it_is_emptied() -> None:
    sent: list[Any] = []

    async def run() -> None:
        async def send(event: Mapping[str, Any]) -> None:
            await asyncio.sleep(0)
            sent.append(event["n"])

        box = Outbox(send, held=True)
        for n in range(3):
            await box.send({"n": n})
        assert not sent
        assert box.holds
        waiting = asyncio.create_task(box.released())
        releasing = asyncio.create_task(box.release())
        for n in range(3, 6):
            await asyncio.sleep(0)
            await box.send({"n": n})
        await releasing
        await asyncio.wait_for(waiting, 10)
        await box.send({"n": 6})

    asyncio.run(run())
    assert sent == list(range(7))


def test_times_of_a_dropped_answer_are_not_those_of_the_next() -> None:
    dropped = TurnTimes(
        900,
        10.0,
        transcript=10.1,
        endpoint=10.4,
        first_words=10.2,
        first_audio=10.3,
        silence_ms=200,
    )
    times = dropped.of_another_answer()
    times.first_words = 10.5
    dropped.first_audio = 10.6  # its task may still be running
    shown = times.event("resp_1")
    assert [shown[f"{part}_ms"] for part in ("transcript", "endpoint")] == [100, 400]
    assert [shown[f"{part}_ms"] for part in ("first_words", "first_audio")] == [500, None]
    assert shown["silence_ms"] == 200


def test_what_was_added_to_a_fork_joins_the_items() -> None:
    items, question = Items(), Item("q", role="user", text="Why?")
    items.add(Item("before", role="user", text="Hello"))
    fork = items.fork(question)
    assert fork.add(Item("answer", role="assistant", text="Because")) == "q"
    assert items.last == "before"
    items.add(Item("q", role="user", spoken=True))
    items.join(fork, "q")
    assert items.last == "answer"
    assert [message["role"] for message in fork.messages()] == ["user", "user", "assistant"]

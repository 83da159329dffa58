"""Which chats may be answered with the answer to another question."""

from typing import Any

import pytest

from galley.cache.question import LONGEST, Question, question_of

LAST = {"role": "user", "content": "How are you?"}
BEFORE = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
HELLO = {"role": "assistant", "content": "Hi"}


def question_in(*messages: dict[str, Any], around: object = (), turns: int = 3) -> Question | None:
    return question_of(messages, around, most_turns=turns)


def test_only_the_text_of_the_last_message_is_compared() -> None:
    first = question_in(*BEFORE, HELLO, LAST)
    other = question_in(*BEFORE, HELLO, LAST | {"content": "How do you do?"})
    assert first is not None
    assert other is not None
    assert (first.text, other.text) == ("How are you?", "How do you do?")
    assert first.context == other.context


@pytest.mark.parametrize(
    "messages",
    [
        (LAST,),
        (BEFORE[0], LAST),
        ({"role": "developer", "content": "Be brief."}, BEFORE[1], HELLO, LAST),
        (*BEFORE, HELLO | {"content": "Hi!"}, LAST),
        (*BEFORE, HELLO, LAST | {"name": "Anna"}),
    ],
)
def test_all_else_is_in_the_context(messages: tuple[dict[str, Any], ...]) -> None:
    first, other = question_in(*BEFORE, HELLO, LAST), question_in(*messages)
    assert first is not None
    assert other is not None
    assert first.context != other.context


def test_tools_and_parameters_are_in_the_context() -> None:
    contexts = {
        found.context
        for around in ((), ("tool",), (1,), (None,))
        if (found := question_in(LAST, around=around)) is not None
    }
    assert len(contexts) == 4


@pytest.mark.parametrize(
    "messages",
    [
        (HELLO,),
        (LAST, HELLO),
        (LAST | {"content": " "},),
        (LAST | {"content": "x" * (LONGEST + 1)},),
        (LAST | {"content": [{"type": "image_url", "image_url": {"url": "data:"}}]},),
        ({"role": "user", "content": [{"type": "image_url"}]}, HELLO, LAST),
        ({"role": "tool", "tool_call_id": "1", "content": "42"}, LAST),
        (BEFORE[1], HELLO | {"tool_calls": [{"id": "1"}]}, LAST),
        (*BEFORE, HELLO, *BEFORE[1:], HELLO, *BEFORE[1:], HELLO, LAST),
    ],
    ids=["answer", "prefill", "blank", "long", "image", "earlier image", "result", "call", "turns"],
)
def test_some_chats_are_not_compared(messages: tuple[dict[str, Any], ...]) -> None:
    assert question_in(*messages) is None


def test_numbers_of_any_size_are_compared() -> None:
    contexts = {
        found.context
        for number in (1, 2**64, 2**70, 1.0)
        if (found := question_in(LAST, around={"maximum": number})) is not None
    }
    assert len(contexts) == 4


def test_no_messages_are_no_question() -> None:
    assert question_in() is None

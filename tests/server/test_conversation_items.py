"""Items of a conversation: their order, their messages, and what was heard of one."""

import pytest

from galley.errors import RequestError
from galley.protocols.openai.realtime.items import MOST_ITEMS, Item, Items

SPOKEN = "One two. Three four."


def spoken() -> Item:
    parts = [(8, 1000), (20, 3000)]
    return Item("a", role="assistant", text=SPOKEN, spoken=True, parts=parts)


@pytest.mark.parametrize(
    ("milliseconds", "heard"),
    [
        (0, ""),
        (500, "One"),
        (999, "One"),
        (1000, "One two."),
        (1500, "One two."),
        (2400, "One two. Three"),
        (2900, "One two. Three"),
        (3000, SPOKEN),
        (9000, SPOKEN),
    ],
)
def test_words_that_were_not_heard_to_their_end_are_cut(milliseconds: int, heard: str) -> None:
    item = spoken()
    item.cut(milliseconds)
    assert item.text == heard
    item.cut(9000)  # what is gone stays so
    assert item.text == heard


def test_items_are_put_where_they_belong() -> None:
    items = Items()
    assert items.add(Item("a", role="user", text="1")) is None
    assert items.add(Item("c", role="user", text="3")) == "a"
    assert items.add(Item("b", role="user", text="2"), "a") == "a"
    assert items.add(Item("z", role="system", text="0"), "root") is None
    assert [message["content"] for message in items.messages()] == ["0", "1", "2", "3"]
    with pytest.raises(RequestError, match="an item 'a' already"):
        items.add(Item("a"))
    with pytest.raises(RequestError, match="no item 'x'"):
        items.add(Item("y"), "x")
    items.remove("b")
    assert items.last == "c"


def test_calls_and_their_outputs_become_messages() -> None:
    items = Items()
    items.add(Item("u", role="user", spoken=True, waits=True))  # not transcribed yet
    for number in (1, 2):
        call = Item(f"c{number}", "function_call", text='{"x": 1}', call_id=f"{number}", name="f")
        items.add(call)
    items.add(Item("o", "function_call_output", text="done", call_id="1"))
    function = {"name": "f", "arguments": {"x": 1}}
    calls = [{"type": "function", "id": f"{n}", "function": function} for n in (1, 2)]
    assert items.messages() == [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]


def test_the_oldest_items_are_forgotten() -> None:
    items = Items()
    for number in range(MOST_ITEMS + 5):
        items.add(Item(f"{number}", role="user", text=f"{number}"))
    messages = items.messages()
    assert len(messages) == MOST_ITEMS
    assert messages[0]["content"] == "5"

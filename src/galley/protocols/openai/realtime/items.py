"""The items of a conversation: messages, calls of functions and their outputs, in order."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from galley.errors import RequestError
from galley.protocols.openai.realtime.conversation_schemas import NewItem
from galley.tools.conversation import read_arguments

MOST_ITEMS: Final = 1000
"""Items of a conversation; the oldest are forgotten."""

ROOT: Final = "root"

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass
class Item:
    """One item.

    Attributes:
        kind: its type in the API.
        role: of a message: who wrote it.
        text: of a message its text or transcript, of a call its arguments, of an output the output.
        spoken: whether a message is audio.
        waits: whether the transcript of an audio message is still missing.
        call_id, name: of a call, and the id of an output, too.
        parts: of spoken text: (characters, milliseconds) after each part of it.
    """

    id: str
    kind: Literal["message", "function_call", "function_call_output"] = "message"
    role: str = ""
    text: str = ""
    spoken: bool = False
    waits: bool = False
    call_id: str = ""
    name: str = ""
    status: Status = "completed"
    parts: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, new: NewItem, item_id: str) -> "Item":
        """Return the item that a client creates."""
        text = "\n".join(part.text for part in new.content or ())
        return cls(
            new.id or item_id,
            new.type,
            new.role or "",
            new.arguments or new.output or text,
            call_id=new.call_id or "",
            name=new.name or "",
        )

    def shown(self) -> dict[str, Any]:
        """Return the item as events have it."""
        about = {"id": self.id, "object": "realtime.item", "type": self.kind, "status": self.status}
        if self.kind == "function_call":
            return {**about, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        if self.kind == "function_call_output":
            return {**about, "call_id": self.call_id, "output": self.text}
        side = "output" if self.role == "assistant" else "input"
        text = None if self.waits else self.text
        part = {"type": f"{side}_audio", "transcript": text} if self.spoken else None
        return {
            **about,
            "role": self.role,
            "content": [part or {"type": f"{side}_text", "text": self.text}],
        }

    def cut(self, milliseconds: int) -> None:
        """Keep the words of spoken text that were heard within a time."""
        at = bisect_left([ms for _, ms in self.parts], milliseconds)
        if at == len(self.parts):
            return
        before, began = self.parts[at - 1] if at else (0, 0)
        after, ended = self.parts[at]
        share = (milliseconds - began) / max(1, ended - began)
        end = before + int((after - before) * share)
        # A word that is not complete was not heard.
        kept = self.text[:end]
        if end < len(self.text) and not self.text[end].isspace():
            kept = kept[: max(kept.rfind(" "), before if share == 0 else 0)]
        self.text = kept.rstrip()
        self.parts = [*self.parts[:at], (len(self.text), milliseconds)]


class Items:
    """All items."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Add an item, and return the id of the one before it.

        Args:
            item: the item.
            after: id of the item to put it after, or "root"; None: at the end.

        Raises:
            RequestError: there is no such item, or the id is taken.
        """
        if any(one.id == item.id for one in self._items):
            raise RequestError(f"there is an item {item.id!r} already", param="item.id")
        place = len(self._items)
        if after == ROOT:
            place = 0
        elif after is not None:
            place = 1 + self._items.index(self.named(after, "previous_item_id"))
        self._items.insert(place, item)
        before = self._items[place - 1].id if place else None
        if len(self._items) > MOST_ITEMS:
            del self._items[0]
        return before

    def fork(self, item: Item) -> "Items":
        """Return a copy in which an item is the last, and which can be changed on its own."""
        fork = Items()
        fork._items = [*self._items, item]
        return fork

    def join(self, fork: "Items", after: str) -> None:
        """Add what was added to a fork after the item with an id."""
        at = fork._items.index(fork.named(after))
        for item in fork._items[at + 1 :]:
            self.add(item)

    @property
    def last(self) -> str | None:
        """The id of the last item."""
        return self._items[-1].id if self._items else None

    def named(self, item_id: str, param: str = "item_id") -> Item:
        """Return an item. Raises RequestError if there is none of that id."""
        for item in self._items:
            if item.id == item_id:
                return item
        raise RequestError(f"there is no item {item_id[:100]!r}", param=param)

    def remove(self, item_id: str) -> None:
        """Remove an item. Raises RequestError if there is none of that id."""
        self._items.remove(self.named(item_id))

    def messages(self) -> list[dict[str, Any]]:
        """Return the items as messages in the form of chat templates."""
        messages: list[dict[str, Any]] = []
        for item in self._items:
            if item.kind == "function_call_output":
                messages.append(
                    {"role": "tool", "tool_call_id": item.call_id, "content": item.text}
                )
            elif item.kind == "function_call":
                function = {"name": item.name, "arguments": read_arguments(item.text)}
                call = {"type": "function", "id": item.call_id, "function": function}
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(call)
            elif item.text:
                messages.append({"role": item.role, "content": item.text})
        return messages

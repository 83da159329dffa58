"""Items of a response's output, and the stream events that report them."""

from collections.abc import Iterator, Mapping
from typing import Any

from galley.tools.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text


class Items:
    """Builds consecutive output items: each begins, grows and is done before the next.

    Attributes:
        done: the items that are done.
    """

    def __init__(
        self,
        request_id: str,
        names: Mapping[str, tuple[str | None, str]] | None = None,
        *,
        streamed: bool = False,
    ) -> None:
        """Start without items.

        Args:
            request_id: the request's id, which items' ids are derived from.
            names: function name for the model -> namespace and name for clients.
            streamed: whether events are sent as they are made. If so, a broken call has been sent
                already, and its text is not repeated. If not, it does not count as a call, and its
                text is put in a message.
        """
        self.done: list[dict[str, Any]] = []
        self._names = names or {}
        self._streamed = streamed
        self._request_id = request_id
        self._item: dict[str, Any] | None = None
        self._text: list[str] = []

    def of(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the stream events for one event of the answer."""
        match event:
            case Text(repeats=True) if self._streamed:
                pass
            case Text():
                yield from self._within("message")
                self._text.append(event.text)
                if event.warning is not None and self._item is not None:
                    self._item["warning"] = event.warning
                yield self._at(
                    "response.output_text.delta", content_index=0, delta=event.text, logprobs=[]
                )
            case Reasoning():
                yield from self._within("reasoning")
                self._text.append(event.text)
                yield self._at("response.reasoning_text.delta", content_index=0, delta=event.text)
            case CallStart():
                yield from self.ended()
                namespace, name = self._names.get(event.name, (None, event.name))
                place = {} if namespace is None else {"namespace": namespace}
                yield from self._begun(
                    "function_call", call_id=event.id, name=name, arguments="", **place
                )
            case Arguments():
                self._text.append(event.text)
                yield self._at("response.function_call_arguments.delta", delta=event.text)
            case CallEnd():
                yield from self.ended(cut=event.broken)

    def ended(self, *, cut: bool = False) -> Iterator[dict[str, Any]]:
        """Complete the current item and yield its events.

        Args:
            cut: whether the item ends before it is complete.
        """
        item = self._item
        if item is None:
            return
        text = "".join(self._text)
        item["status"] = "incomplete" if cut else "completed"
        if item["type"] == "function_call":
            item["arguments"] = text
            yield self._at(
                "response.function_call_arguments.done", arguments=text, name=item["name"]
            )
        else:
            said = item["type"] == "message"
            kind = "response.output_text.done" if said else "response.reasoning_text.done"
            extra: dict[str, Any] = {"logprobs": []} if said else {}
            yield self._at(kind, content_index=0, text=text, **extra)
            part = _part(item["type"], text)
            item["content"] = [part]
            yield self._at("response.content_part.done", content_index=0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.done), "item": item}
        if not (cut and item["type"] == "function_call") or self._streamed:
            self.done.append(item)
        self._item, self._text = None, []

    def _within(self, kind: str) -> Iterator[dict[str, Any]]:
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self.ended()
        fields: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        yield from self._begun(kind, content=[], **fields)
        yield self._at("response.content_part.added", content_index=0, part=_part(kind, ""))

    def _begun(self, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        name = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        made = f"{name}_{self._request_id}-{len(self.done)}"
        self._item = {"id": made, "type": kind, "status": "in_progress", **fields}
        added = {"type": "response.output_item.added", "output_index": len(self.done)}
        yield {**added, "item": dict(self._item)}

    def _at(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._item is not None
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.done), **fields}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": text}

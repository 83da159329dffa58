"""Stored responses, which later requests can continue: in memory, separate for each tenant."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, Self, TypedDict

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.protocols.openai.responses.schemas import Include, InputItem, items_of
from galley.settings.config import Settings

_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}
_KINDS: Final = {"assistant": "output_text"}
"""Role -> type of its text parts, if not ``input_text``."""


class ResponseDeleted(TypedDict):
    """Answer of `DELETE /v1/responses/{response_id}`."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemsQuery(Strict, frozen=True, kw_only=True):
    """Query for the input items of a response."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="desc: the latest item first.")] = (
        "desc"
    )
    after: Annotated[str, Meta(description="An item's id: the page begins after it.")] = ""
    include: Annotated[
        tuple[Include, ...], Meta(description="Accepted and ignored: everything is included.")
    ] = ()


class ItemList(TypedDict):
    """Answer of `GET /v1/responses/{response_id}/input_items`."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Output(msgspec.Struct):
    output: list[InputItem]


class StoredResponse(NamedTuple):
    """A response and the conversation that it answers.

    Attributes:
        answer: the response object, as JSON.
        items: its input as JSON: all earlier items of the conversation, then those of its request.
    """

    answer: bytes
    items: bytes

    @classmethod
    def of(
        cls, answer: Any, earlier: Sequence[InputItem], given: str | Sequence[InputItem]
    ) -> "StoredResponse":
        """Create a stored response from an answer and its input.

        Args:
            answer: the response object.
            earlier: items of the conversation that precede the request's.
            given: input of the request.
        """
        items = listed([*earlier, *items_of(given)], answer["id"])
        return cls(msgspec.json.encode(answer), msgspec.json.encode(items))

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.answer) + len(self.items)

    def conversation(self) -> list[InputItem]:
        """Return all items of the conversation, including the answer's."""
        said = msgspec.json.decode(self.items, type=list[InputItem])
        return said + msgspec.json.decode(self.answer, type=_Output).output


class ResponseStore:
    """The responses of all tenants, limited in number, bytes and age.

    When it is full, it drops the oldest response of the tenant that holds the most of the resource
    that is exhausted: responses or bytes. A tenant that holds less than its share of the total thus
    loses none to others.
    """

    def __init__(
        self,
        *,
        most: int,
        most_bytes: int,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty store.

        Args:
            most: the most responses; 0: nothing is stored.
            most_bytes: the most bytes.
            seconds: age after which a response is dropped.
            clock: returns seconds and never goes back.
        """
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._clock = clock
        self._count = self._bytes = 0
        self._tenants: dict[str, _TenantResponses] = {}

    @classmethod
    def of(cls, settings: Settings, clock: Callable[[], float] = time.monotonic) -> Self:
        """Create an empty store with the limits that the settings have for stored responses."""
        return cls(
            most=settings.stored_responses,
            most_bytes=settings.stored_response_bytes,
            seconds=settings.stored_response_seconds,
            clock=clock,
        )

    @property
    def is_on(self) -> bool:
        """Whether responses are stored."""
        return self._most > 0

    def keep(self, tenant: str, name: str, response: StoredResponse) -> bool:
        """Store a response; return False if storing is off or it alone exceeds the size limit."""
        if not self.is_on or response.size > self._most_bytes:
            return False
        self._drop_old()
        stored = self._tenants.setdefault(tenant, _TenantResponses())
        stored.responses[name] = (self._clock() + self._seconds, response)
        self._changed(stored, response, +1)
        while self._count > self._most or self._bytes > self._most_bytes:
            # The newest stays, or a tenant with a long conversation could store nothing.
            others = [
                t for t, has in self._tenants.items() if t != tenant or len(has.responses) > 1
            ]
            by_number = self._count > self._most
            largest = max(others, key=lambda other: self._tenants[other].held(by_number))
            self.remove(largest, next(iter(self._tenants[largest].responses)))
        return True

    def find(self, tenant: str, name: str) -> StoredResponse | None:
        """Return a tenant's response by id; None if it is gone or belongs to another tenant."""
        self._drop_old()
        stored = self._tenants.get(tenant)
        found = None if stored is None else stored.responses.get(name)
        return None if found is None else found[1]

    def remove(self, tenant: str, name: str) -> bool:
        """Remove a response; return False if it is not there."""
        stored = self._tenants.get(tenant)
        if stored is None or name not in stored.responses:
            return False
        _, response = stored.responses.pop(name)
        self._changed(stored, response, -1)
        if not stored.responses:
            del self._tenants[tenant]
        return True

    def _changed(self, stored: "_TenantResponses", response: StoredResponse, sign: int) -> None:
        self._count += sign
        self._bytes += sign * response.size
        stored.bytes += sign * response.size

    def _drop_old(self) -> None:
        """Remove expired responses; each tenant's are in the order of their age."""
        now = self._clock()
        for tenant, stored in list(self._tenants.items()):
            while stored.responses:
                name, (until, _) = next(iter(stored.responses.items()))
                if until > now:
                    break
                self.remove(tenant, name)


class Responses(Protocol):
    """Stored responses, wherever they are."""

    @property
    def is_on(self) -> bool:
        """Whether responses are stored."""

    async def keep(self, tenant: str, name: str, response: StoredResponse) -> bool:
        """Store a response; return False if that fails or is not allowed."""

    async def find(self, tenant: str, name: str) -> StoredResponse | None:
        """Return a tenant's response by id; None if it is not stored."""

    async def remove(self, tenant: str, name: str) -> bool:
        """Remove a response; return False if it is not there."""


class OwnResponses:
    """The responses in this process's memory, as :class:`Responses`."""

    def __init__(self, settings: Settings) -> None:
        """Create an empty store."""
        self._store = ResponseStore.of(settings)

    @property
    def is_on(self) -> bool:
        """See :class:`Responses`."""
        return self._store.is_on

    async def keep(self, tenant: str, name: str, response: StoredResponse) -> bool:
        """See :class:`Responses`."""
        return self._store.keep(tenant, name, response)

    async def find(self, tenant: str, name: str) -> StoredResponse | None:
        """See :class:`Responses`."""
        return self._store.find(tenant, name)

    async def remove(self, tenant: str, name: str) -> bool:
        """See :class:`Responses`."""
        return self._store.remove(tenant, name)


async def previous(store: Responses, tenant: str, name: str) -> StoredResponse:
    """Return the response that a request continues.

    Raises:
        RequestError: it is not stored.
    """
    found = await store.find(tenant, name)
    if found is None:
        why = "it was not stored, or deleted, or evicted by later ones"
        if not store.is_on:
            why = "this server does not store responses (--stored-responses)"
        raise RequestError(
            f"Previous response with id {name[:100]!r} not found: {why}; send the conversation's items "
            "instead",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found


class _TenantResponses:
    """One tenant's responses, oldest first, each with its time of expiry."""

    def __init__(self) -> None:
        self.responses: OrderedDict[str, tuple[float, StoredResponse]] = OrderedDict()
        self.bytes = 0

    def held(self, by_number: bool) -> int:
        """Return the number of responses, or their bytes."""
        return len(self.responses) if by_number else self.bytes


def listed(items: Sequence[InputItem], response_id: str) -> list[dict[str, Any]]:
    """Return items as they are listed: each with a unique id, and its text in parts."""
    listed = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        fields = {k: v for k, v in msgspec.to_builtins(item).items() if v is not None}
        name = fields.get("id") or ""
        if not name or name in seen:
            name = f"{_PREFIXES[item.type]}_{response_id.removeprefix('resp_')}-in{index}"
        seen.add(name)
        if item.type == "message" and isinstance(item.content, str):
            part = {"type": _KINDS.get(item.role or "", "input_text"), "text": item.content}
            fields["content"] = [part | ({"annotations": []} if item.role == "assistant" else {})]
        listed.append(fields | {"id": name, "status": item.status or "completed"})
    return listed


def page_of(response: StoredResponse, query: ItemsQuery) -> ItemList:
    """Return the page of a response's input items that the query selects.

    Raises:
        RequestError: no item has the id ``after``.
    """
    items: list[dict[str, Any]] = msgspec.json.decode(response.items)
    if query.order == "desc":
        items.reverse()
    first = 0
    if query.after:
        places = (place for place, item in enumerate(items) if item["id"] == query.after)
        if (place := next(places, None)) is None:
            raise RequestError(f"after: item {query.after[:100]!r} does not exist", param="after")
        first = place + 1
    page = items[first : first + query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": first + len(page) < len(items),
    }

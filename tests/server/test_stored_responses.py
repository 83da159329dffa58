"""Stored responses: conversations that continue from them, and the requests on them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from galley.protocols.openai.responses.store import (
    OwnResponses,
    ResponseStore,
    StoredResponse,
    previous,
)
from galley.settings.config import Settings
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.refusals import error_of
from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_protocols")

GREEDY: Any = {"model": "calling", "temperature": 0, "max_output_tokens": 12}
TOOL: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    there = tmp_path_factory.mktemp("server")
    KeyFile(there / "keys.yaml", ada={}, bob={})
    limits: Any = {"kv_cache_tokens": 16384, "threads": 1, "stored_response_bytes": 20_000}
    keys = there / "keys.yaml"
    with Server(folder, there / "log", api_key_file=keys, stored_responses=8, **limits) as running:
        yield running


@pytest.fixture(scope="module")
def ada(server: Server) -> Iterator[OpenAI]:
    with server.openai(key_of("ada")) as sdk:
        yield sdk


def test_a_conversation_continues_as_if_all_of_it_were_sent_again(ada: OpenAI) -> None:
    first = ada.responses.create(
        input=[
            {"role": "developer", "content": "Rhyme."},
            {"role": "user", "content": "Who sat on the mat?"},
        ],
        instructions="Be brief.",
        **GREEDY,
    )
    assert first.store is True
    then: Any = {"input": "And where?", "tools": [TOOL], **GREEDY}
    went_on = ada.responses.create(previous_response_id=first.id, **then)
    said: Any = [
        {"role": "developer", "content": "Rhyme."},
        {"role": "user", "content": "Who sat on the mat?"},
        *first.output,
        {"role": "user", "content": "And where?"},
    ]
    sent_again = ada.responses.create(**{**then, "input": said})
    assert went_on.output_text == sent_again.output_text
    assert first.usage
    assert went_on.usage
    assert sent_again.usage
    assert went_on.usage.input_tokens == sent_again.usage.input_tokens
    assert went_on.previous_response_id == first.id
    # A stream is stored once it is complete.
    events = list(ada.responses.create(stream=True, previous_response_id=went_on.id, **then))
    streamed: Any = events[-1].response
    assert ada.responses.retrieve(streamed.id).output_text == streamed.output_text
    third = ada.responses.create(previous_response_id=streamed.id, **then)
    items: Any = ada.responses.input_items.list(third.id, order="asc", limit=3)
    assert items.has_more
    listed = list(items)
    assert [item.id for item in listed] == list(dict.fromkeys(item.id for item in listed))
    texts = [item.content[0].text for item in listed]
    outputs = [first.output_text, went_on.output_text, streamed.output_text]
    assert texts[:3] == ["Rhyme.", "Who sat on the mat?", outputs[0]]
    assert [text for text in texts if text in outputs] == outputs
    extra: Any = ["message.input_image.image_url", "file_search_call.results"]
    assert ada.responses.retrieve(third.id, include=extra, include_obfuscation=True).id == third.id
    included: Any = ada.responses.input_items.list(third.id, order="asc", limit=3, include=extra)
    assert included.data == items.data
    latest = list(ada.responses.input_items.list(third.id, limit=1))
    assert latest == listed[::-1]


def test_what_is_stored_is_the_tenants_until_it_is_deleted(server: Server, ada: OpenAI) -> None:
    made = ada.responses.create(input="Who?", store=True, **GREEDY)
    again = ada.responses.retrieve(made.id)
    assert again.to_dict() == made.to_dict()
    with server.openai(key_of("bob")) as bob:
        for ask in (bob.responses.retrieve, bob.responses.delete, bob.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                ask(made.id)
        with pytest.raises(openai.BadRequestError) as refused:
            bob.responses.create(input="So?", previous_response_id=made.id, **GREEDY)
        assert refused.value.code == "previous_response_not_found"
    ada.responses.delete(made.id)
    for ask in (ada.responses.retrieve, ada.responses.delete, ada.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    private = ada.responses.create(input="Who?", store=False, **GREEDY)
    assert private.store is False
    with pytest.raises(openai.NotFoundError):
        ada.responses.retrieve(private.id)
    # A response larger than the store reports itself that it is not stored.
    large = ada.responses.create(input="Who?", store=True, metadata={"a": "x" * 20_000}, **GREEDY)
    assert large.store is False


def test_options_of_a_stored_response_are_honored_or_refused_and_named(
    server: Server, ada: OpenAI
) -> None:
    made = ada.responses.create(input="Who?", **GREEDY)
    one = f"{server.url}/v1/responses/{made.id}"
    for url, param in (
        (f"{one}?stream=maybe", "stream"),
        (f"{one}/input_items?limit=0", "limit"),
        (f"{one}/input_items?order=up", "order"),
        (f"{one}/input_items?after=msg_none", "after"),
        (f"{one}/input_items?before=x", "before"),
        (f"{one}/input_items?include=all", "include[0]"),
        (f"{one}?include[]=message.output_text.logprobs", "include[0]"),
    ):
        answer = httpx.get(url, headers=bearer(key_of("ada")))
        assert error_of(answer)["param"] == param
    assert httpx.get(one).status_code == 401


def of_size(size: int) -> StoredResponse:
    return StoredResponse(b"x" * size, b"")


@given(
    kept=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(0, 30))),
    most=st.integers(0, 5),
    most_bytes=st.integers(1, 25),
)
def test_the_store_stays_within_its_bounds_and_the_oldest_is_evicted(
    kept: list[tuple[str, int, int]], most: int, most_bytes: int
) -> None:
    now = 0.0
    settings = Settings(
        stored_responses=most, stored_response_bytes=most_bytes, stored_response_seconds=40
    )
    store = ResponseStore.of(settings, clock=lambda: now)
    times: dict[tuple[str, str], tuple[float, int]] = {}
    for index, (tenant, size, seconds) in enumerate(kept):
        now += seconds
        fits = most > 0 and size <= most_bytes
        assert store.keep(tenant, str(index), of_size(size)) == fits
        if fits:
            times[tenant, str(index)] = now, size
            assert store.find(tenant, str(index))
        there = {key: times[key] for key in times if store.find(*key)}
        assert len(there) <= most
        assert sum(size for _, size in there.values()) <= most_bytes
        assert all(now - made < 40 for made, _ in there.values())
        # The latest of each tenant are kept: what is evicted is older than what is not.
        for owner in "abc":
            order = [key in there for key in times if key[0] == owner]
            assert order == sorted(order)
        for owner, name in there:
            assert not any(store.find(other, name) for other in "abc" if other != owner)


@pytest.mark.parametrize("tenants", [2, 4])
@pytest.mark.parametrize(
    ("number", "size", "small"),
    [(1100, 1, 50_000), (1100, 1, 1), (100, 1_000_000, 1), (100, 1_000_000, 200_000)],
)
def test_a_tenant_within_its_share_loses_nothing_to_another(
    tenants: int, number: int, size: int, small: int
) -> None:
    store = ResponseStore.of(Settings())
    kept = [(f"light {index}", str(n)) for index in range(tenants - 1) for n in range(20)]
    for tenant, name in kept:
        assert store.keep(tenant, name, of_size(small))
    for index in range(number):
        assert store.keep("heavy", str(index), of_size(size))
    assert all(store.find(*key) for key in kept)
    assert store.find("heavy", str(number - 1))


def test_nothing_is_stored_where_nothing_may_be() -> None:
    store = ResponseStore.of(Settings(stored_responses=0))
    assert not store.is_on
    assert not store.keep("a", "x", of_size(1))
    nowhere = OwnResponses(Settings(stored_responses=0))
    with pytest.raises(ValueError, match="this server does not store responses"):
        asyncio.run(previous(nowhere, "a", "x"))

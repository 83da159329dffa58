"""The key of a stored answer: what shapes the answer changes it, and nothing else does."""

from typing import Any

import msgspec
import pytest

from galley.cache.keys import question_scope, request_key
from galley.types import EngineRequest, Generate, SamplingParams
from galley.types.requests import Adapter

IDENTITY = b"model"


def request(**changes: Any) -> EngineRequest:
    """Return a request for a drawn text, with changed fields of its envelope, payload or sampling."""
    sampling = SamplingParams(temperature=0.7, seed=5, max_tokens=9, logit_bias={7: 1.0, 3: -2.0})
    made = EngineRequest(
        id="r-0",
        payload=Generate(prompt=[1, 2, 3], sampling=sampling),
        tenant="one",
        cache_salt="salt",
        adapter=Adapter("cat", "/cat", "digest"),
    )
    if changes.keys() <= set(SamplingParams.__struct_fields__):
        payload = Generate(prompt=[1, 2, 3], sampling=msgspec.structs.replace(sampling, **changes))
        return msgspec.structs.replace(made, payload=payload)
    return msgspec.structs.replace(made, **changes)


def key(**changes: Any) -> bytes:
    return request_key(IDENTITY, request(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "two"},
        {"tenant": ""},
        {"cache_salt": ""},
        {"tenant": "onesalt", "cache_salt": ""},
        {"adapter": None},
        {"adapter": Adapter("cat", "/cat", "another digest")},
        {"payload": Generate(prompt=[1, 2, 4], sampling=SamplingParams())},
        {"seed": 6},
        {"temperature": 0.8},
        {"max_tokens": 8},
        {"stop": ("end",)},
        {"logit_bias": {7: 1.0}},
        {"logit_bias": {7: -2.0, 3: 1.0}},
    ],
    ids=str,
)
def test_what_shapes_the_answer_changes_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "r-1"},
        {"priority": 3},
        {"weight": 2.0},
        {"tenant_priority": 1},
        {"keep_seconds": 60.0},
        {"adapter": Adapter("dog", "/elsewhere", "digest")},
        {"speculation": "off"},
        {"logit_bias": {3: -2.0, 7: 1.0}},
    ],
    ids=str,
)
def test_what_does_not_shape_the_answer_keeps_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) == key()


def test_another_model_has_other_keys() -> None:
    assert request_key(b"another", request()) != key()


def test_a_greedy_text_needs_no_seed() -> None:
    assert key(temperature=0.0, seed=1) == key(temperature=0.0, seed=2)


def test_shared_draws_leave_out_the_seed_but_not_the_choice() -> None:
    def shared(**changes: Any) -> bytes:
        return request_key(IDENTITY, request(**changes), shared_draws=True)

    assert shared(seed=6) == shared()
    assert shared(id="other-0") == shared()
    assert shared(id="r-1") != shared()


def scope(context: bytes = b"history", **changes: Any) -> bytes:
    return question_scope(IDENTITY, request(**changes), context)


@pytest.mark.parametrize(
    "changes",
    [
        {"context": b"another history"},
        {"tenant": "two"},
        {"cache_salt": ""},
        {"adapter": None},
        {"seed": 6},
        {"temperature": 0.8},
        {"stop": ("end",)},
        {"logprobs": 1},
        {"logit_bias": {7: 1.0}},
    ],
    ids=str,
)
def test_questions_are_compared_only_where_all_else_is_equal(changes: dict[str, Any]) -> None:
    assert scope(**changes) != scope()


def test_the_length_of_a_question_does_not_matter() -> None:
    """Nor does ``max_tokens``, which is what the context leaves; the client's own is in the context."""
    payload = request().payload
    assert isinstance(payload, Generate)
    assert scope(payload=msgspec.structs.replace(payload, prompt=[1, 2, 3, 4])) == scope()
    assert scope(max_tokens=8) == scope()

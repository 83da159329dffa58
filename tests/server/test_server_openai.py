"""OpenAI's own client as the reference: every parameter, streaming and not."""

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from tests.server.conftest import CONTEXT
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("default_server")

CAT = 260
"""A token id other than the end of sequence."""


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


def ask(client: OpenAI, content: str = "hello", **parameters: Any) -> ChatCompletion:
    parameters = {"temperature": 0, "max_tokens": 12, **parameters}
    extra = {name: parameters.pop(name) for name in EXTRA & parameters.keys()}
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": content}],
        extra_body=extra,
        **parameters,
    )
    assert isinstance(answer, ChatCompletion)
    return answer


EXTRA = {
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "priority",
    "cache_salt",
    "speculation",
}


def text(client: OpenAI, content: str = "hello", **parameters: Any) -> str:
    return ask(client, content, **parameters).choices[0].message.content or ""


def tokens(client: OpenAI, **parameters: Any) -> list[str]:
    """Return the exact bytes of the generated tokens, in hexadecimal."""
    logprobs = ask(client, logprobs=True, **parameters).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return [bytes(entry.bytes or []).hex() for entry in logprobs.content]


def test_an_answer_has_every_field(client: OpenAI) -> None:
    answer = ask(client, max_tokens=5, ignore_eos=True)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "length")
    assert choice.message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_a_repeated_prompt_is_cached(client: OpenAI) -> None:
    content = "tell me about the cat that sat on the mat " * 3
    first, second = (ask(client, content, cache_salt="repeat").usage for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert first.prompt_tokens_details.cached_tokens == 0
    assert (second.prompt_tokens_details.cached_tokens or 0) >= second.prompt_tokens - 32
    other = ask(client, content, cache_salt="another").usage
    assert other is not None
    assert other.prompt_tokens_details is not None
    assert other.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1, "top_k": 1},
        {"temperature": 1, "top_p": 1e-6},
        {"temperature": 1, "top_p": 0},
        {"temperature": 1, "min_p": 1.0},
        {"temperature": 0, "seed": 5},
        {"temperature": 0, "priority": -3},
        {"temperature": 0, "cache_salt": "mine"},
        {"temperature": 0, "user": "u", "metadata": {"a": "b"}, "store": False},
        {"temperature": 0, "service_tier": "auto", "response_format": {"type": "text"}},
    ],
    ids=str,
)
def test_these_are_all_greedy(client: OpenAI, parameters: dict[str, Any]) -> None:
    assert text(client, **parameters) == text(client)


NOTHING: list[dict[str, Any]] = [
    {"store": True},
    {"functions": []},
    {"functions": None, "function_call": None},
    {"prompt_cache_key": "x", "safety_identifier": "y"},
    {"modalities": ["text"], "audio": None, "prediction": None, "web_search_options": None},
]


@pytest.mark.parametrize("fields", NOTHING, ids=str)
def test_what_asks_for_nothing_changes_nothing(client: OpenAI, fields: dict[str, Any]) -> None:
    assert text(client, temperature=0, **fields) == text(client, temperature=0)
    completed = [
        client.completions.create(
            model="tiny",
            prompt="the cat",
            temperature=0,
            max_tokens=4,
            extra_body={"suffix": value},
        ).choices[0]
        for value in (None, "")
    ]
    assert completed[0] == completed[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "x"}]},
        {"function_call": "auto"},
        {"modalities": ["audio"]},
        {"web_search_options": {}},
    ],
    ids=str,
)
def test_unsupported_options_are_refused_and_named(client: OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        text(client, **fields)
    [name] = fields
    assert (refused.value.param or "").startswith(name)


def test_seed_decides_the_text(client: OpenAI) -> None:
    seeded = [text(client, temperature=1, seed=seed) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]
    assert text(client, temperature=1) != text(client, temperature=1)


def test_logit_bias_forces_tokens(client: OpenAI) -> None:
    forced = tokens(client, logit_bias={str(CAT): 100}, max_tokens=3, ignore_eos=True)
    assert len(set(forced)) == 1
    assert len(forced) == 3


@pytest.mark.parametrize(
    ("penalty", "value"),
    [("presence_penalty", 2.0), ("frequency_penalty", 2.0), ("repetition_penalty", 100.0)],
)
def test_penalties_move_away_from_seen_tokens(client: OpenAI, penalty: str, value: float) -> None:
    def distinct(**parameters: Any) -> int:
        return len(set(tokens(client, max_tokens=40, ignore_eos=True, **parameters)))

    assert distinct(**{penalty: value}) > distinct()


def test_ends_are_held_off_by_min_tokens_and_ignored_on_request(client: OpenAI) -> None:
    always_end: dict[str, Any] = {"logit_bias": {"0": 100}, "max_tokens": 8}
    at_once = ask(client, **always_end)
    assert at_once.choices[0].finish_reason == "stop"
    assert at_once.choices[0].message.content == ""
    held = ask(client, **always_end, min_tokens=4)
    assert held.usage is not None
    assert held.usage.completion_tokens == 5
    assert ask(client, **always_end, ignore_eos=True).choices[0].finish_reason == "length"


def test_stop_strings_end_the_text_before_them(client: OpenAI) -> None:
    whole = text(client, max_tokens=20, ignore_eos=True)
    for stop in (whole[5:7], [whole[8:9], whole[5:7], "never"]):
        answer = ask(client, max_tokens=20, ignore_eos=True, stop=stop)
        ends = [whole.index(one) for one in ([stop] if isinstance(stop, str) else stop[:2])]
        assert answer.choices[0].message.content == whole[: min(ends)]
        assert answer.choices[0].finish_reason == "stop"


def test_stop_token_ids_end_the_text(client: OpenAI) -> None:
    answer = ask(client, logit_bias={str(CAT): 100}, stop_token_ids=[CAT])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == ""


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit(client: OpenAI, name: str) -> None:
    limits: dict[str, Any] = {"max_tokens": openai.omit, name: 7}
    answer = ask(client, ignore_eos=True, **limits)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


def test_choices_are_independent_and_seeded(client: OpenAI) -> None:
    answer = ask(client, temperature=1, seed=9, n=3)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == text(client, temperature=1, seed=9)
    assert texts == [c.message.content for c in ask(client, temperature=1, seed=9, n=3).choices]


def test_logprobs(client: OpenAI) -> None:
    logprobs = ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    for entry in logprobs.content:
        top = [alternative.logprob for alternative in entry.top_logprobs]
        assert len(top) == 3
        assert top == sorted(top, reverse=True)
        assert entry.logprob == top[0]  # greedy
        assert entry.token == bytes(entry.bytes or []).decode("utf-8", "replace")
    assert ask(client).choices[0].logprobs is None


def test_messages_of_every_role_and_form(client: OpenAI) -> None:
    def tokens_of(messages: list[Any]) -> int:
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    parts = [{"type": "text", "text": "good "}, {"type": "text", "text": "day"}]
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "good day"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "the cat"},
    ]
    answered = {"role": "assistant", "content": "yes?", "refusal": None, "tool_calls": None}
    rich = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        answered,
        {"role": "user", "content": "the cat", "name": "someone"},
    ]
    assert tokens_of(plain) == tokens_of(rich)


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_is_the_answer_in_pieces(client: OpenAI, n: int) -> None:
    wanted: dict[str, Any] = {"temperature": 1, "seed": 3, "n": n, "ignore_eos": True}
    whole = ask(client, **wanted, logprobs=True, top_logprobs=1)
    wanted["extra_body"] = {"ignore_eos": wanted.pop("ignore_eos")}
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=1,
            max_tokens=12,
            **wanted,
        )
    )
    *body, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 12 * n
    assert all(chunk.usage is None for chunk in body)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    for index in range(n):
        mine = [c.choices[0] for c in body if c.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert [c.finish_reason for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == "length"
        joined = "".join(c.delta.content or "" for c in mine)
        assert joined == whole.choices[index].message.content
        entries = [e for c in mine if c.logprobs for e in c.logprobs.content or []]
        expected = whole.choices[index].logprobs
        assert expected is not None
        assert entries == expected.content


def test_models(client: OpenAI) -> None:
    (listed,) = client.models.list().data
    assert listed == client.models.retrieve("tiny")
    assert listed.id == "tiny"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("someone/other")
    assert error.value.code == "model_not_found"


def bad_request(client: OpenAI, **parameters: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, **parameters)
    return error.value


def test_errors_are_the_sdks_own(client: OpenAI) -> None:
    error = bad_request(client, temperature=-1)
    assert (error.type, error.param) == ("invalid_request_error", "temperature")
    error = bad_request(client, max_tokens=CONTEXT)
    assert (error.param, error.code) == ("max_tokens", "context_length_exceeded")
    assert str(CONTEXT) in error.message
    error = bad_request(client, max_tokens=openai.omit, max_completion_tokens=CONTEXT)
    assert error.param == "max_completion_tokens"
    error = bad_request(client, content="the cat " * CONTEXT)
    assert (error.param, error.code) == ("messages", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            temperature=-1,
        )

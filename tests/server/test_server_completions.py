"""Plain completions: every form of prompt, echo and the legacy log-probabilities."""

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Completion

from tests.server.conftest import CONTEXT
from tests.server.serving import Server, events

pytestmark = pytest.mark.xdist_group("default_server")

PROMPT = "the cat sat on the"


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


def complete(client: OpenAI, prompt: Any = PROMPT, **parameters: Any) -> Completion:
    parameters = {"temperature": 0, "max_tokens": 8, **parameters}
    answer = client.completions.create(model="tiny", prompt=prompt, **parameters)
    assert isinstance(answer, Completion)
    return answer


def tokenize(server: Server, text: str) -> list[int]:
    answer = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()
    assert answer["count"] == len(answer["tokens"])
    ids: list[int] = answer["tokens"]
    return ids


def test_every_form_of_prompt_says_the_same(server: Server, client: OpenAI) -> None:
    ids = tokenize(server, PROMPT)
    expected = complete(client).choices[0].text
    for prompt in (ids, [PROMPT], [ids]):
        (choice,) = complete(client, prompt).choices
        assert (choice.index, choice.text) == (0, expected)
    other = complete(client, "the dog").choices[0].text
    for pair in ([PROMPT, "the dog"], [ids, tokenize(server, "the dog")]):
        assert [c.text for c in complete(client, pair).choices] == [expected, other]


def test_choices_are_grouped_by_prompt(client: OpenAI) -> None:
    sampled: dict[str, Any] = {"temperature": 1, "seed": 4}
    answer = complete(client, [PROMPT, "the dog"], n=2, **sampled)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    alone = [complete(client, prompt, n=2, **sampled).choices for prompt in (PROMPT, "the dog")]
    assert [c.text for c in answer.choices] == [c.text for choices in alone for c in choices]
    assert answer.usage is not None
    prompts = [complete(client, prompt).usage for prompt in (PROMPT, "the dog")]
    assert answer.usage.prompt_tokens == sum(usage.prompt_tokens for usage in prompts if usage)


def test_echo_puts_the_prompt_first(server: Server, client: OpenAI) -> None:
    expected = PROMPT + complete(client).choices[0].text
    assert complete(client, echo=True).choices[0].text == expected
    assert complete(client, tokenize(server, PROMPT), echo=True).choices[0].text == expected
    assert complete(client, echo=True, max_tokens=0).choices[0].text == PROMPT
    nothing = complete(client, max_tokens=0).choices[0]
    assert (nothing.text, nothing.finish_reason) == ("", "length")


def test_logprobs_are_parallel_lists(client: OpenAI) -> None:
    choice = complete(client, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    assert len(logprobs.tokens) == 8
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert top[token] == logprob == max(top.values())
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    assert logprobs.text_offset[0] == 0


def test_echo_with_logprobs_scores_the_prompt(server: Server, client: OpenAI) -> None:
    scored = complete(client, echo=True, logprobs=1, max_tokens=0).choices[0].logprobs
    assert scored is not None
    assert scored.tokens is not None
    assert scored.token_logprobs is not None
    assert "".join(scored.tokens) == PROMPT
    assert scored.token_logprobs[0] is None
    assert all(value < 0 for value in scored.token_logprobs[1:])
    assert scored.text_offset is not None
    for offset, token in zip(scored.text_offset, scored.tokens, strict=True):
        assert PROMPT[offset:].startswith(token)
    # The score of a generated token is the score it has as part of a prompt.
    generated = complete(client, logprobs=0, max_tokens=1).choices[0]
    ids = tokenize(server, PROMPT)
    assert generated.logprobs is not None
    assert generated.logprobs.top_logprobs is not None
    (alternatives,) = generated.logprobs.top_logprobs
    both = complete(client, echo=True, logprobs=0, max_tokens=1).choices[0].logprobs
    assert both is not None
    assert both.token_logprobs is not None
    assert both.token_logprobs[: len(ids)] == scored.token_logprobs
    assert both.token_logprobs[-1] == pytest.approx(next(iter(alternatives.values())))


@pytest.mark.parametrize(
    "prompt", ["<|end|>the cat<|end|> sat", "the cat<|end|>", "é<|end|><|end|>x", PROMPT]
)
def test_offsets_of_an_echo_are_into_the_text_that_is_sent(client: OpenAI, prompt: str) -> None:
    more = {"min_tokens": 3, "ignore_eos": True}
    choice = complete(client, prompt, echo=True, logprobs=0, max_tokens=3, extra_body=more).choices[
        0
    ]
    assert choice.text.startswith(prompt)
    scored = choice.logprobs
    assert scored is not None
    assert scored.tokens is not None
    assert scored.text_offset is not None
    ends = [*scored.text_offset[1:], len(choice.text)]
    pieces = [choice.text[a:b] for a, b in zip(scored.text_offset, ends, strict=True)]
    assert "".join(pieces) == choice.text
    of_prompt = zip(scored.tokens[:-3], pieces[:-3], strict=True)
    whole = [(token, piece) for token, piece in of_prompt if "bytes:" not in token]
    assert whole
    assert all(token == piece for token, piece in whole), whole


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_is_the_answer_in_pieces(client: OpenAI, echo: bool) -> None:
    params: dict[str, Any] = {"prompt": [PROMPT, "the dog"], "n": 2, "echo": echo, "logprobs": 1}
    params |= {"temperature": 1, "seed": 8, "max_tokens": 6}
    whole = complete(client, **params)
    stream = client.completions.create(
        model="tiny", stream=True, stream_options={"include_usage": True}, **params
    )
    *body, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.total_tokens == whole.usage.total_tokens
    for expected in whole.choices:
        mine = [chunk.choices[0] for chunk in body if chunk.choices[0].index == expected.index]
        assert "".join(choice.text for choice in mine) == expected.text
        assert mine[-1].finish_reason == expected.finish_reason
        offsets = [o for c in mine if c.logprobs for o in c.logprobs.text_offset or []]
        assert expected.logprobs is not None
        assert offsets == expected.logprobs.text_offset


def test_what_unicode_calls_a_line_end_does_not_break_an_event(server: Server) -> None:
    prompt = "".join(map(chr, [*range(1, 0x300), *range(0x2000, 0x2100)]))
    params = {"model": "tiny", "prompt": prompt, "echo": True, "max_tokens": 0, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=params) as answer:
        *chunks, done = events(answer)
    assert done == "[DONE]"
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == prompt


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"logprobs": 1000000}, "logprobs"),
        ({"best_of": 10**9}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ["x"] * 1000}, "prompt"),
    ],
    ids=str,
)
def test_refusals_name_the_field(client: OpenAI, parameters: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        complete(client, **parameters)
    assert error.value.param is not None
    assert error.value.param.startswith(param)


def test_tokenize_and_detokenize_are_inverse(server: Server) -> None:
    with server.client() as http:
        for text in (PROMPT, "a ünïcode 猫 text", "<|im_start|>"):
            answer = http.post("/tokenize", json={"prompt": text, "model": "tiny"}).json()
            assert answer["max_model_len"] > 0
            back = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
            assert back == {"prompt": text}
        messages = [{"role": "user", "content": "hi"}]
        long = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
        short = http.post(
            "/tokenize", json={"messages": messages, "add_generation_prompt": False}
        ).json()["tokens"]
        assert long[: len(short)] == short
        assert len(long) > len(short)
        spelled = http.post("/detokenize", json={"tokens": long}).json()["prompt"]
        assert spelled == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [99999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1], "more": 1}, "more"),
    ],
    ids=str,
)
def test_token_routes_refuse_what_they_cannot_do(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    answer = httpx.post(f"{server.url}{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_completion_has_sixteen_tokens_unless_the_request_says(
    server: Server, client: OpenAI
) -> None:
    def ended(prompt: Any, **parameters: Any) -> tuple[int, str]:
        answer = client.completions.create(
            model="tiny",
            prompt=prompt,
            temperature=0,
            extra_body={"ignore_eos": True, **parameters},
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens, answer.choices[0].finish_reason

    assert ended(PROMPT) == (16, "length")
    assert ended(PROMPT, max_tokens=20) == (20, "length")
    long = [5] * (CONTEXT - 3)
    assert ended(long) == (3, "length")  # there is room for no more
    assert ended(PROMPT, min_tokens=18, ignore_eos=False)[0] >= 18

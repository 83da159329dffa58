"""Triton's generate extension: the same texts as OpenAI's completions."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("generate")

PROMPT = "A KV cache"
GREEDY = {"max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(["chat=galley-demo", "embed=galley-demo-embed"], log, threads=1) as running:
        yield running


def ask(server: Server, body: Any, route: str = "chat/generate") -> httpx.Response:
    return httpx.post(f"{server.url}/v2/models/{route}", json=body, timeout=60)


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture(scope="module")
def text(server: Server) -> str:
    """Return the text that OpenAI's own client receives."""
    answer = server.openai().completions.create(
        model="chat", prompt=PROMPT, max_tokens=12, temperature=0
    )
    assert answer.choices[0].text
    return answer.choices[0].text


def test_a_text_is_that_of_a_completion(server: Server, text: str) -> None:
    frame = {"model_name": "chat", "model_version": "1"}
    for body in (
        {"text_input": PROMPT, "parameters": GREEDY},  # as in vLLM's backend
        {"text_input": PROMPT, **GREEDY, "stop_words": ""},  # as in TensorRT-LLM's
    ):
        assert ask(server, body).json() == {**frame, "text_output": text}
    newest = {f"sampling_param_{name}": value for name, value in GREEDY.items()}
    for body in (
        {"text_input": PROMPT, **GREEDY, "bad_words": "", "stop_words": ""},
        {"text_input": PROMPT, **newest, "sampling_param_exclude_input_from_output": True},
        {"text_input": PROMPT, **newest, "streaming": False},
    ):
        assert ask(server, body).json() == {**frame, "text_output": text}
    body = {"text_input": PROMPT, "id": "7", "exclude_input_in_output": False, **GREEDY}
    wanted = {**frame, "id": "7", "text_output": PROMPT + text}
    assert ask(server, body, "chat/versions/1/generate").json() == wanted
    stop = {"text_input": PROMPT, **GREEDY, "stop_words": [text[4:6]]}
    assert ask(server, stop).json()["text_output"] == text[:4]


def test_a_stream_has_the_parts_of_the_text(server: Server) -> None:
    # Long enough not to be complete before its first part is written.
    long = GREEDY | {"max_tokens": 300, "ignore_eos": True}
    text = ask(server, {"text_input": PROMPT, "parameters": long}).json()["text_output"]
    body = {"text_input": PROMPT, "id": "s", "parameters": {"stream": True, **long}}
    response = ask(server, body, "chat/generate_stream")
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = events(response)
    assert len(parts) > 3
    assert "".join(part["text_output"] for part in parts) == text
    assert {(part["id"], part["model_name"]) for part in parts} == {("s", "chat")}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"text_input": PROMPT, "parameters": {"color": 1}}, "color"),
        ({"text_input": PROMPT, "bad_words": "a"}, "bad_words is not supported"),
        ({"text_input": PROMPT, "sampling_param_n": 2}, "sampling_param_n"),
        ({"text_input": PROMPT, "streaming": True}, "use /generate_stream"),
        ({"text_input": PROMPT, "top_k": 1, "sampling_param_top_k": 1}, "given twice"),
        ({"text_input": PROMPT, "stream": True}, "use /generate_stream"),
        ({"text_input": PROMPT, "parameters": {"n": 2}}, "parameters.n is not supported"),
        ({"text_input": PROMPT, "max_tokens": 1, "parameters": {"max_tokens": 2}}, "given twice"),
        ({"text_input": PROMPT, "temperature": -1}, "temperature"),
        ({"text_input": ""}, "text_input is empty"),
        ({"parameters": {}}, "text_input"),
    ],
)
def test_errors_name_what_is_wrong(server: Server, body: Any, says: str) -> None:
    answer = ask(server, body)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]


def test_other_models_do_not_generate(server: Server) -> None:
    body = {"text_input": PROMPT}
    assert "cannot generate" in ask(server, body, "embed/generate").json()["error"]
    assert ask(server, body, "other/generate").status_code == 404
    assert ask(server, {**body, "stream": False}, "chat/generate_stream").status_code == 400

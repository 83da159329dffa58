"""Ollama's API, through its own client."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.server.recorded import RECORDINGS
from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_protocols")

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ASKED: Any = [{"role": "user", "content": "Who sat on the mat?"}]
RECORDED = [
    request
    for request in json.loads((RECORDINGS / "langchain-ollama.json").read_text())["requests"]
    if request["path"] != "/api/embed"  # covered by test_embeddings.py
]
GREEDY = {"temperature": 0.0, "num_predict": 40}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"calling={folder}", f"brief={folder}", "brief.system_prompt=Be brief."]
    models.append("brief.sampling_defaults=temperature=0,max_tokens=7,repetition_penalty=1.3")
    with Server(models, log, kv_cache_tokens=16384, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as sdk:
        yield sdk


def test_a_conversation_whole_and_in_pieces(client: ollama.Client, server: Server) -> None:
    answer = client.chat("calling", ASKED, options=GREEDY)
    assert answer.message.content
    assert (answer.done, answer.done_reason) in [(True, "length"), (True, "stop")]
    assert answer.eval_count == 40 or answer.done_reason == "stop"
    assert (
        client.chat("calling", ASKED, options=GREEDY | {"num_predict": 2}).done_reason == "length"
    )
    assert answer.prompt_eval_count
    assert answer.eval_duration
    one = client.generate("calling", "x", options={"num_predict": 1})
    assert one.eval_count == 1
    assert one.eval_duration
    assert one.prompt_eval_duration
    assert answer.total_duration
    assert answer.total_duration >= answer.eval_duration
    pieces = list(client.chat("calling:latest", ASKED, options=GREEDY, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == answer.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) > 1
    # Answers are streamed unless the request says otherwise.
    body = {"model": "calling", "messages": ASKED, "options": GREEDY}
    lines = [
        json.loads(line)
        for line in httpx.post(server.url + "/api/chat", json=body).text.splitlines()
    ]
    assert len(lines) > 1
    assert "".join(line["message"]["content"] for line in lines) == answer.message.content
    plain = httpx.post(
        server.url + "/v1/chat/completions",
        json={"model": "calling", "messages": ASKED, "temperature": 0, "max_tokens": 40},
    ).json()
    assert plain["choices"][0]["message"]["content"] == answer.message.content


def test_a_prompt_with_and_without_the_template(client: ollama.Client, server: Server) -> None:
    templated = client.generate("calling", "Who?", system="Be brief.", options=GREEDY)
    as_chat = client.chat(
        "calling",
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
        options=GREEDY,
    )
    assert templated.response == as_chat.message.content
    raw = client.generate("calling", "Who?", raw=True, options=GREEDY)
    plain = httpx.post(
        server.url + "/v1/completions",
        json={"model": "calling", "prompt": "Who?", "temperature": 0, "max_tokens": 40},
    ).json()
    assert raw.response == plain["choices"][0]["text"]
    pieces = client.generate("calling", "Who?", raw=True, options=GREEDY, stream=True)
    assert "".join(piece.response or "" for piece in pieces) == raw.response


def test_the_form_of_the_answer(client: ollama.Client) -> None:
    options = {"num_predict": 200, "seed": 1}
    made = client.chat("calling", ASKED, format=SCHEMA, options=options, think=False)
    assert json.loads(made.message.content or "")["city"] in ("Paris", "Rome")
    assert made.done_reason == "stop"
    made_too = client.generate("calling", "x", format=SCHEMA, options=options, think=False)
    assert json.loads(made_too.response or "")["city"] in ("Paris", "Rome")


def test_thinking_and_tools_reach_the_template(client: ollama.Client) -> None:
    def tokens(messages: Any = ASKED, **fields: Any) -> int:
        count = client.chat(
            "calling", messages, options={"num_predict": 1}, **fields
        ).prompt_eval_count
        assert isinstance(count, int)
        return count

    function = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
    tool = {"type": "function", "function": function}
    bare = tokens()
    assert bare < tokens(think=True) < tokens(think=False)
    assert tokens(tools=[tool]) > bare + 50
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    called = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "21 degrees", "tool_name": "get_weather"},
    ]
    assert tokens(called) > bare + 20
    without = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert tokens([called[0], without, *called[2:]]) == tokens(called)


def test_what_clients_ask_of_models(client: ollama.Client) -> None:
    listed, _ = client.list().models
    assert listed.model == "calling"
    assert listed.size
    assert listed.details
    assert listed.details.family == "llama"
    running, _ = client.ps().models
    assert (running.model, running.context_length) == ("calling", 4096)
    shown = client.show("calling:latest")
    assert shown.modelinfo
    assert shown.modelinfo["llama.context_length"] == 4096
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert client.generate("calling", "").done_reason == "load"
    assert client.chat("calling", []).done_reason == "load"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (dict.fromkeys(("temperature", "num_ctx", "mirostat_eta", "wings")), []),
        ({"wings": 2, "mirostat_tau": 5.0}, ["'options.wings'", "'options.mirostat_tau'"]),
        ({"\U0001f9d9" * 100: 1, **{f"x{i}": 1 for i in range(20)}}, ["and 13 more"]),
        ({"num_ctx": 10**6}, ["options.num_ctx is 1000000; the model's context is 4096"]),
        ({"num_ctx": 4096, "repeat_last_n": 64, "repeat_penalty": 1.1}, []),
    ],
    ids=["nulls", "unknown", "many", "longer", "known"],
)
def test_options_that_ask_nothing_of_this_server_are_warned_of_at_most(
    server: Server, path: str, stream: bool, options: dict[str, Any], warned: list[str]
) -> None:
    requested = {"messages": ASKED} if path == "/api/chat" else {"prompt": "x"}
    options = {**options, "num_predict": 1}
    for given in (requested, {}):  # an answer, and a report that the model is loaded
        body = {"model": "calling", "stream": stream, "options": options, **given}
        answer = httpx.post(server.url + path, json=body)
        assert answer.status_code == 200, answer.text
        *_, last = map(json.loads, answer.text.splitlines())
        text = " ".join(last.get("warnings", []))
        assert all(warning in text for warning in warned), text
        assert len(text) < 1000
        assert warned or "warnings" not in last


@pytest.mark.parametrize("request_", RECORDED, ids=lambda request_: request_["path"])
def test_what_langchain_sends_is_answered(server: Server, request_: dict[str, Any]) -> None:
    answer = httpx.post(
        server.url + request_["path"],
        json={**request_["body"], "model": "calling", "options": {"num_predict": 2}},
    )
    assert answer.status_code == 200, answer.text


def test_a_short_memory_of_penalties_and_a_drawn_seed(client: ollama.Client) -> None:
    def text(**options: Any) -> str:
        sampled = {"num_predict": 60, "temperature": 1.0, "seed": 3, **options}
        return str(client.generate("calling", "the cat", raw=True, options=sampled).response)

    plain, penalized = text(), text(repeat_penalty=1.5)
    assert text(repeat_penalty=1.5, repeat_last_n=0) == plain != penalized
    assert text(repeat_penalty=1.5, repeat_last_n=-1) == penalized
    assert text(repeat_penalty=1.5, repeat_last_n=4) not in (plain, penalized)
    assert len({text(seed=-1) for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/api/chat", {"options": {"temperature": -1}}, "options.temperature"),
        ("/api/chat", {"options": {"mirostat": 2}}, "options.mirostat"),
        ("/api/chat", {"options": {"num_predict": -3}}, "options.num_predict"),
        ("/api/chat", {"options": {"repeat_last_n": -2}}, "options.repeat_last_n"),
        ("/api/chat", {"options": {"stop": 5}}, "options.stop"),
        ("/api/chat", {"options": 5}, "options"),
        ("/api/generate", {"options": {"top_k": "x"}}, "options.top_k"),
        ("/api/chat", {"format": "yaml"}, "format"),
        ("/api/chat", {"format": {"type": "wrong"}}, "format"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            "messages[0].images",
        ),
        ("/api/generate", {"suffix": "x"}, "suffix"),
        ("/api/generate", {"template": "x"}, "template"),
        ("/api/generate", {"context": [1]}, "context"),
        ("/api/generate", {"raw": True, "system": "x"}, "system"),
        ("/api/show", {}, "model"),
    ],
)
def test_what_cannot_be_honored_is_named_in_ollamas_form(
    server: Server, path: str, fields: dict[str, Any], named: str
) -> None:
    given = {"messages": ASKED} if path == "/api/chat" else {"prompt": "x"}
    body = {"model": "calling", **given, **fields} if path != "/api/show" else fields
    answer = httpx.post(server.url + path, json=body)
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"]
    assert named in answer.json()["error"]


def test_an_unknown_model_is_the_clients_error(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="does not exist") as refused:
        client.chat("llama3.2", ASKED)
    assert refused.value.status_code == 404


def test_what_a_request_leaves_open_is_as_the_models_settings_say(
    client: ollama.Client, server: Server
) -> None:
    brief: Any = [{"role": "system", "content": "Be brief."}]
    own: Any = [{"role": "system", "content": "Be kind."}]
    said = {"temperature": 0, "num_predict": 7, "repeat_penalty": 1.3}
    for headed, requested in ((brief, ASKED), (own, own + ASKED)):
        messages = headed + ASKED
        expected = client.chat("calling", messages, options=said)
        answer = client.chat("brief", requested)
        assert answer.message.content == expected.message.content
        assert answer.prompt_eval_count == expected.prompt_eval_count
        assert (answer.eval_count, answer.done_reason) == (7, "length")
    assert client.chat("brief", ASKED, options={"num_predict": 9}).eval_count == 9
    limits: list[Any] = [{}, {"max_tokens": 7}]
    with server.openai() as openai:
        counts = [
            openai.chat.completions.create(model=model, messages=messages, **limit).usage
            for model, messages, limit in zip(
                ("brief", "calling"), (ASKED, brief + ASKED), limits, strict=True
            )
        ]
        assert counts[0] is not None
        assert counts[1] is not None
        assert counts[0].prompt_tokens == counts[1].prompt_tokens
        assert counts[0].completion_tokens == 7
    tokens = [
        httpx.post(f"{server.url}/tokenize", json={"model": model, "messages": messages}).json()
        for model, messages in (("brief", ASKED), ("calling", brief + ASKED))
    ]
    assert tokens[0]["tokens"] == tokens[1]["tokens"]

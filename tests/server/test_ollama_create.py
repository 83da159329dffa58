"""Aliases of models, as Ollama's client creates them from a Modelfile."""

from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from anthropic import Anthropic

from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_protocols")

ASKED: Any = [{"role": "user", "content": "Who sat on the mat?"}]
PARAMETERS: dict[str, Any] = {
    "temperature": 0,
    "num_predict": 5,
    "repeat_penalty": 1.4,
    "repeat_last_n": 6,
    "stop": ["\\n\\n"],
    "num_gpu": 1,
}
SYSTEM: Any = [{"role": "system", "content": "Be brief."}]
KEY = "sk-operator"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=512)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(folder, log, kv_cache_tokens=4096, threads=1, admin_key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: Server) -> Iterator[ollama.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with ollama.Client(host=server.url, headers=headers) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as sdk:
        yield sdk


def test_a_created_name_has_a_system_prompt_and_parameters(
    server: Server, operator: ollama.Client, client: ollama.Client
) -> None:
    made = operator.create("terse", from_="calling", system="Be brief.", parameters=PARAMETERS)
    assert made.status == "success"
    expected = client.chat("calling", SYSTEM + ASKED, options=PARAMETERS)
    assert client.chat("terse:latest", ASKED).message.content == expected.message.content
    assert client.chat("terse", ASKED).eval_count == 5
    # Values in a request take precedence.
    assert client.chat("terse", ASKED, options={"num_predict": 3}).eval_count == 3
    own: Any = [{"role": "system", "content": "Be kind."}]
    kind = client.chat("calling", own + ASKED, options=PARAMETERS)
    assert client.chat("terse", own + ASKED).prompt_eval_count == kind.prompt_eval_count
    # Other protocols know the alias, too.
    with server.openai() as openai:
        answer = openai.chat.completions.create(model="terse", messages=ASKED)
        assert answer.choices[0].message.content == expected.message.content
        usage = openai.completions.create(model="terse", prompt="x").usage
        assert usage is not None
        assert usage.completion_tokens == 5
    shown = client.show("terse")
    assert shown.parameters
    assert "max_tokens 5" in shown.parameters
    raw = httpx.post(f"{server.url}/api/show", json={"model": "terse"}).json()
    assert raw["system"] == "Be brief."
    [listed] = [m for m in client.list().models if m.model == "terse"]
    assert listed.details
    assert listed.details.parent_model == "calling"


def test_a_copy_is_what_its_source_was(operator: ollama.Client, client: ollama.Client) -> None:
    operator.create("one", from_="calling", parameters=PARAMETERS, stream=False)
    operator.copy("one", "two")
    operator.create("three", from_="two", system="Be brief.", parameters={"num_predict": 2})
    operator.delete("one")
    assert client.chat("two", ASKED).eval_count == 5
    three = client.chat("three", ASKED)
    two = client.chat("calling", SYSTEM + ASKED, options=PARAMETERS | {"num_predict": 2})
    assert (three.message.content, three.eval_count) == (two.message.content, 2)
    with pytest.raises(ollama.ResponseError) as gone:
        client.chat("one", ASKED)
    assert gone.value.status_code == 404
    names = {model.model for model in client.list().models}
    assert {"calling", "two", "three"} <= names
    assert "one" not in names


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({}, 400, "from"),
        ({"from": "nothing"}, 404, "nothing"),
        ({"from": "calling", "template": "{{ .Prompt }}"}, 400, "template"),
        ({"from": "calling", "adapters": {"a.gguf": "sha256:0"}}, 400, "adapters"),
        ({"from": "calling", "files": {"m.gguf": "sha256:0"}}, 400, "files"),
        ({"from": "calling", "parameters": {"temperature": -1}}, 400, "parameters.temperature"),
        ({"from": "calling", "parameters": {"top_k": "x"}}, 400, "parameters.top_k"),
        ({"from": "calling", "model": "calling"}, 409, "calling"),
        ({"from": "calling", "model": "../x"}, 400, "model"),
        ({"from": "calling", "quantize": "q4_0"}, 400, "quantize"),
    ],
)
def test_what_cannot_be_made_is_named(
    server: Server, fields: dict[str, Any], status: int, named: str
) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": "odd", "stream": False, **fields}
    answer = httpx.post(f"{server.url}/api/create", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert named in answer.json()["error"]
    assert "odd" not in httpx.get(f"{server.url}/api/tags").text


def test_a_further_name_is_among_the_models_of_every_protocol(
    server: Server, operator: ollama.Client
) -> None:
    operator.copy("calling", "listed")
    [base, *_] = httpx.get(f"{server.url}/v1/models").json()["data"]
    named = httpx.get(f"{server.url}/v1/models/listed").json()
    assert named == {**base, "id": "listed", "parent": "calling"}
    assert named in httpx.get(f"{server.url}/v1/models").json()["data"]
    ids = [one.id for one in Anthropic(base_url=server.url, api_key="none").models.list()]
    assert {"calling", "listed"} <= set(ids)
    operator.delete("listed")
    assert httpx.get(f"{server.url}/v1/models/listed").status_code == 404


def test_only_an_operator_makes_names(server: Server) -> None:
    for path in ("create", "copy"):
        assert httpx.post(f"{server.url}/api/{path}", json={}).status_code in (401, 403)


def test_unknown_parameters_are_warned_of(server: Server) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": "w", "from": "calling", "stream": False, "parameters": {"wings": 2}}
    answer = httpx.post(f"{server.url}/api/create", json=body, headers=headers).json()
    assert answer["warnings"] == ["unknown options, ignored: 'parameters.wings'"]

"""A protocol is added with one file and one line, as ``shout.py`` does."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.conftest import CONTEXT
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("adding")


@pytest.fixture(scope="module")
def shouting(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("shouting") / "log"
    with Server(
        model,
        log,
        module="tests.server.shout",
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        log_prompts=True,
    ) as running:
        yield running


def test_a_protocol_of_one_file_answers_as_the_others_do(shouting: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    chat = httpx.post(f"{shouting.url}/v1/chat/completions", json=body).json()
    text = chat["choices"][0]["message"]["content"].upper()
    whole = httpx.post(f"{shouting.url}/shout", json={"say": "hi"})
    assert (whole.status_code, whole.json()) == (200, {"text": text})
    streamed = httpx.post(f"{shouting.url}/shout", json={"say": "hi", "stream": True})
    event, ending = streamed.text.strip().split("\n\n")
    assert (json.loads(event.removeprefix("data: ")), ending) == ({"text": text}, "data: [DONE]")
    shouting.wait_for_log(r"POST /shout 200 .*prompt_text=\S*hi")


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"say": "hi", "louder": True}, 400, "louder"),
        ({"say": 1}, 400, "say"),
        ({"say": "hi", "model": "none"}, 404, "model"),
    ],
)
def test_it_refuses_what_others_refuse(
    shouting: Server, body: dict[str, object], status: int, named: str
) -> None:
    answer = httpx.post(f"{shouting.url}/shout", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, named)


def test_the_openapi_page_has_it(shouting: Server) -> None:
    page = httpx.get(f"{shouting.url}/openapi.json").json()
    assert page["paths"]["/shout"]["post"]["summary"] == "Answer loudly."
    assert "say" in page["components"]["schemas"]["ShoutRequest"]["properties"]

"""Popular clients other than the vendors' SDKs: LangChain, LiteLLM, instructor and the ``llm`` command.

They are not installed for the other tests: ``make test-clients`` installs and runs them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("clients")

ASKED = "Who sat on the mat?"
MESSAGES: Any = [{"role": "user", "content": ASKED}]


class Where(BaseModel):
    """Where something is."""

    city: Literal["Paris", "Rome"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(folder, log, kv_cache_tokens=16384, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def text(server: Server) -> str:
    """Return the model's answer through the plain API."""
    with server.openai() as client:
        answer = client.chat.completions.create(
            model="calling", messages=MESSAGES, temperature=0, max_tokens=30
        )
    content = answer.choices[0].message.content
    assert content
    return content


def test_langchain(server: Server, text: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="calling", temperature=0, max_tokens=30
    )
    assert chat.invoke(ASKED).content == text
    assert "".join(chunk.content for chunk in chat.stream(ASKED)) == text
    # A random model that starts thinking may never finish.
    quick = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        model="calling",
        temperature=0,
        max_tokens=200,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    found = quick.with_structured_output(Where, method="json_schema").invoke(ASKED)
    assert found.city in ("Paris", "Rome")
    calling = quick.bind_tools([Where], tool_choice="any", strict=True, parallel_tool_calls=False)
    [call] = calling.invoke(ASKED).tool_calls
    assert call["name"] == "Where"
    assert call["args"]["city"] in ("Paris", "Rome")
    by_responses = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        model="calling",
        temperature=0,
        max_tokens=30,
        use_responses_api=True,
    )
    [block] = by_responses.invoke(ASKED).content
    assert block["text"] == text


@pytest.mark.parametrize(
    ("provider", "path"), [("openai", "/v1"), ("ollama_chat", ""), ("anthropic", "")]
)
def test_litellm(server: Server, text: str, provider: str, path: str) -> None:
    litellm = pytest.importorskip("litellm")
    params: dict[str, Any] = {
        "model": f"{provider}/calling",
        "api_base": f"{server.url}{path}",
        "api_key": "none",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 30,
    }
    assert litellm.completion(**params).choices[0].message.content == text
    chunks = litellm.completion(stream=True, **params)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_instructor(server: Server) -> None:
    instructor = pytest.importorskip("instructor")
    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as plain:
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
            client = instructor.from_openai(plain, mode=mode)
            found = client.chat.completions.create(
                model="calling", messages=MESSAGES, response_model=Where, max_retries=0
            )
            assert found.city in ("Paris", "Rome")


def test_the_llm_command(server: Server, text: str, tmp_path: Path) -> None:
    pytest.importorskip("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: calling\n  model_name: calling\n  api_base: {server.url}/v1\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "llm", "-m", "calling"),
            *("-o", "temperature", "0", "-o", "max_tokens", "30", ASKED),
        ],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.rstrip("\n") == text.rstrip("\n")

"""Requests that keep their prefix find it in a cache that others have filled."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from galley.errors import RequestError
from galley.protocols.anthropic.schemas import MessagesRequest
from galley.protocols.openai.chat.schemas import ChatRequest
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.responses.schemas import ResponseRequest
from tests.server.serving import Server

CONTENT = "The quick brown fox jumps over the lazy dog. " * 5
MARK = {"type": "ephemeral"}
PARTS = [{"type": "text", "text": CONTENT, "cache_control": MARK}]
MESSAGES = [{"role": "user", "content": CONTENT}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}

ASKED: list[tuple[type[msgspec.Struct], dict[str, Any], float]] = [
    (ChatRequest, {"messages": MESSAGES}, 0),
    (ChatRequest, {"messages": MESSAGES, "prompt_cache_key": "s"}, 300),
    (ChatRequest, {"messages": MESSAGES, "prompt_cache_retention": "in_memory"}, 300),
    (ChatRequest, {"messages": [{"role": "user", "content": PARTS}]}, 300),
    (ChatRequest, {"messages": [{**MESSAGES[0], "copilot_cache_control": MARK}]}, 300),
    (ChatRequest, {"messages": [{**MESSAGES[0], "cache_control": {"ttl": "1h"}}]}, 3600),
    (CompletionRequest, {"prompt": "a", "prompt_cache_retention": "24h"}, 86_400),
    (ChatRequest, {"messages": MESSAGES, "prompt_cache_options": {"ttl": "12h"}}, 43_200),
    (ResponseRequest, {"input": "a", "prompt_cache_options": {"mode": "implicit"}}, 0),
    (
        ResponseRequest,
        {"input": "a", "prompt_cache_key": "s", "prompt_cache_options": {"ttl": "30m"}},
        1800,
    ),
    (ResponseRequest, {"input": "a"}, 0),
    (ResponseRequest, {"input": "a", "prompt_cache_key": "s"}, 300),
    (MessagesRequest, {"messages": MESSAGES, "max_tokens": 1}, 0),
    (MessagesRequest, {"messages": MESSAGES, "max_tokens": 1, "cache_control": MARK}, 300),
    (MessagesRequest, {"messages": MESSAGES, "max_tokens": 1, "system": PARTS}, 300),
    (
        MessagesRequest,
        {
            "messages": [{"role": "user", "content": PARTS}],
            "max_tokens": 1,
            "tools": [{**TOOL, "cache_control": {**MARK, "ttl": "1h"}}],
        },
        3600,
    ),
]


@pytest.mark.parametrize(("kind", "body", "seconds"), ASKED)
def test_requests_say_how_long(
    kind: type[msgspec.Struct], body: dict[str, Any], seconds: float
) -> None:
    parsed: Any = msgspec.json.decode(json.dumps(body), type=kind)
    assert parsed.keep_seconds == seconds


def test_an_unknown_time_is_refused() -> None:
    body = {"messages": [{**MESSAGES[0], "cache_control": {"ttl": "2 weeks"}}]}
    parsed = msgspec.json.decode(json.dumps(body), type=ChatRequest)
    with pytest.raises(RequestError, match="cache_control: ttl is '2 weeks'"):
        _ = parsed.keep_seconds


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("keeping") / "log"
    with Server(model, log, kv_cache_tokens=1024, threads=1) as running:
        yield running


def of_content(text: str) -> list[tuple[str, dict[str, Any], bool]]:
    """Return requests whose prompts begin differently, and whether each keeps its prefix."""
    one = [{"role": "user", "content": f"one {text}"}]
    two = [{"role": "user", "content": f"two {text}"}]
    three = [{"role": "user", "content": f"three {text}"}]
    return [
        ("chat/completions", {"messages": one}, False),
        ("chat/completions", {"messages": two, "prompt_cache_key": "s"}, True),
        ("completions", {"prompt": text, "prompt_cache_retention": "24h"}, True),
        ("responses", {"input": f"four {text}", "prompt_cache_key": "s"}, True),
        ("messages", {"messages": three, "cache_control": MARK}, True),
    ]


@pytest.mark.xdist_group("keeping_prefixes")
@pytest.mark.parametrize(("path", "body", "kept"), of_content(CONTENT))
def test_what_is_kept_outlives_other_requests(
    path: str, body: dict[str, Any], kept: bool, server: Server
) -> None:
    limit = "max_output_tokens" if path == "responses" else "max_tokens"
    body = {"model": "tiny", "temperature": 0, limit: 1, **body}
    with server.client() as client:

        def hits() -> float:
            client.post(f"/v1/{path}", json=body).raise_for_status()
            return server.metrics()["galley_prefix_cache_hit_tokens_total"]

        def flood() -> None:
            for i in range(10):
                prompt = [10 + i, *range(20, 220)]
                other = {"model": "tiny", "prompt": prompt, "max_tokens": 1}
                client.post("/v1/completions", json=other).raise_for_status()

        flood()
        hits()
        flood()
        before = server.metrics()["galley_prefix_cache_hit_tokens_total"]
        assert (hits() > before) == kept

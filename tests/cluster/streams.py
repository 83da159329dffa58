"""Streams over HTTP of every kind that a cluster has to continue exactly."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

TOKENS = 120

_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place", "days"],
        },
    },
}

Ask = tuple[str, dict[str, Any]]
"""Route and body of a request."""


def asks(count: int, model: str, adapter: str, tokens: int = TOKENS) -> list[Ask]:
    """Return streams in turn: greedy, drawn with a seed, with a grammar, with an adapter, with a tool."""
    return [_ask(i, model, adapter, tokens) for i in range(count)]


def _ask(i: int, model: str, adapter: str, tokens: int) -> Ask:
    common = {"model": model, "stream": True, "max_tokens": tokens, "seed": i, "ignore_eos": True}
    prompt = [5 + i % 7, *range(20, 20 + 5 * (i % 11))]
    if i % 5 == 4:
        chat = {
            "messages": [{"role": "user", "content": f"Weather {i}?"}],
            "tools": [_TOOL],
            "tool_choice": "required",
            "temperature": 1.0,
        }
        del common["ignore_eos"]
        return "/v1/chat/completions", {**common, **chat}
    more: dict[str, Any] = {"prompt": prompt, "temperature": 0.0 if i % 5 == 0 else 1.0}
    if i % 5 == 2:
        del common["ignore_eos"]
        more["structured_outputs"] = {"regex": "([a-z]{3} ){40}end"}
    if i % 5 == 3:
        more["model"] = adapter
    return "/v1/completions", {**common, **more}


async def answers(
    url: str, wanted: Sequence[Ask], on_piece: Callable[[int], Awaitable[None]] | None = None
) -> list[str]:
    """Run the streams at the same time; return each one's whole answer, without ids and times.

    ``on_piece`` is called after each piece of any stream, with its length.
    """
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits) as client:
        return list(await asyncio.gather(*(_answer(client, *ask, on_piece) for ask in wanted)))


async def _answer(
    client: httpx.AsyncClient,
    route: str,
    body: dict[str, Any],
    on_piece: Callable[[int], Awaitable[None]] | None,
) -> str:
    parts: list[str] = []
    reason = None
    async with client.stream("POST", route, json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                reason = choice["finish_reason"] or reason
                parts.append(_content(choice))
                if on_piece is not None:
                    await on_piece(len(parts[-1]))
    assert reason is not None, "a stream ended without its last piece"
    return "".join([*parts, f" ({reason})"])


def _content(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    delta = choice["delta"]
    calls = [call["function"] for call in delta.get("tool_calls") or ()]
    said = [call.get("name") or "" for call in calls] + [
        call.get("arguments") or "" for call in calls
    ]
    return "".join([delta.get("content") or "", *said])

"""A greedy stream that runs alongside hostile work and must not change by a byte."""

import contextlib
import json
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tests.server.serving import Server, events

PATH: Final = "/v1/completions"
REQUEST: Final[dict[str, Any]] = {
    "prompt": "the dog",
    "max_tokens": 40,
    "temperature": 0,
    "ignore_eos": True,
}


class Neighbor:
    """A stream started on entry; on a clean exit its text must be ``expected`` and the server healthy."""

    def __init__(self, server: Server, expected: str, **headers: str) -> None:
        self._server = server
        self._client = server.client(headers=headers)
        self._expected = expected

    def __enter__(self) -> Self:
        body = _request(self._client) | {"stream": True}
        request = self._client.build_request("POST", PATH, json=body)
        self._stream = self._client.send(request, stream=True)
        assert self._stream.status_code == 200, self._stream.read()
        self._events = events(self._stream)
        self._received = [next(self._events)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.closing(self._client), contextlib.closing(self._stream):
            if kind is not None:
                return
            self._received += self._events
            assert self._received.pop() == "[DONE]"
            assert text_of(self._received) == self._expected
        # The server may close a connection at any moment if it has been idle.
        with self._server.client() as client:
            assert client.get("/health").status_code == 200


def alone(client: httpx.Client) -> str:
    """Return the stream's text when nothing else runs."""
    answer = client.post(PATH, json=_request(client))
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def _request(client: httpx.Client) -> dict[str, Any]:
    """Return the request, to the first of the server's models."""
    model = client.get("/v1/models").json()["data"][0]["id"]
    return REQUEST | {"model": model}


def text_of(received: list[str]) -> str:
    """Return the text of a stream's events."""
    chunks: list[dict[str, Any]] = [json.loads(event) for event in received]
    assert not any("error" in chunk for chunk in chunks), received[-1]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)

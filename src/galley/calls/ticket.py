"""Tickets: a served language model fills in a JSON schema from the redacted transcript of a call."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from galley.errors import RequestError, SettingsError, Unavailable, shown
from galley.json_http import exchange, is_server, route_of

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "topics": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        "sentiment": {"type": "string", "enum": ["positive", "neutral", "negative"]},
        "resolved": {"type": "boolean"},
        "next_steps": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
    },
    "required": ["summary", "topics", "sentiment", "resolved", "next_steps"],
    "additionalProperties": False,
}
"""The schema of a ticket by default."""

_INSTRUCTION: Final = (
    "Write a ticket about this telephone call as JSON. Take everything from the transcript, and invent "
    "nothing."
)
_MOST_BYTES: Final = 1 << 20
_MOST_TOKENS: Final = 1024
_BUSY: Final = (408, 429)
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, kw_only=True)
class TicketWriter:
    """Requests tickets from a server with OpenAI's API.

    Attributes:
        url: of the server, such as ``http://127.0.0.1:8000``.
        model: name of its model.
        schema: JSON schema of a ticket.
        api_key: sent as bearer token; None: none is sent.
        timeout: seconds for one ticket.

    Raises:
        SettingsError: ``url`` is no HTTP URL.
    """

    url: str
    model: str
    schema: dict[str, Any]
    api_key: str | None = None
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if not is_server(self.url):
            raise SettingsError(f"{shown(self.url)} is not a URL such as http://127.0.0.1:8000")

    def write(self, transcript: str) -> dict[str, Any]:
        """Return the ticket of a call.

        Args:
            transcript: the text by speaker, redacted.

        Raises:
            Unavailable: the server cannot be reached, or is busy.
            RequestError: the server refuses the request, or its answer is not a whole ticket.
        """
        body = {
            "model": self.model,
            "messages": [
                {"role": "system", "content": _INSTRUCTION},
                {"role": "user", "content": transcript},
            ],
            "temperature": 0,
            "max_completion_tokens": _MOST_TOKENS,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "ticket", "strict": True, "schema": self.schema},
            },
        }
        answer = self._post("/v1/chat/completions", body)
        try:
            choice = answer["choices"][0]
            if choice["finish_reason"] == "length":
                raise RequestError(f"the ticket is longer than {_MOST_TOKENS} tokens")
            ticket = json.loads(choice["message"]["content"])
            if not isinstance(ticket, dict):
                raise ValueError("no object")
        except RequestError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise RequestError(f"{self.url} did not answer with a ticket: {error}") from error
        return ticket

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
            route_of(self.url, path), json.dumps(body).encode(), headers
        )
        try:
            return json.loads(exchange(request, timeout=self.timeout, most=_MOST_BYTES))
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode("utf-8", "replace")
            message = f"{self.url} answered {error.code}: {detail}"
            if error.code in _BUSY or error.code >= _SERVER_ERROR:
                raise Unavailable(message, retry_after=1) from error
            raise RequestError(message) from error
        except (OSError, ValueError) as error:
            raise Unavailable(f"{self.url}: {error}", retry_after=1) from error

"""Checks that every refusal shares."""

import re
from typing import Any

import httpx


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Return the error object, after the checks that hold for every refusal."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert not re.search(r"Traceback|0x[0-9a-f]{6}|\.py\b|msgspec|Ellipsis", answer.text)
    return error

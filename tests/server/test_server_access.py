"""The fallback for bugs: the answer is 500 and reveals nothing."""

import asyncio
import logging

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from galley.observe.metrics import Metrics
from galley.server.access import AccessLog


async def buggy(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("secret detail")


@pytest.mark.parametrize("path", ["/x", "/health"])
def test_a_bug_is_an_internal_error(path: str, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(AccessLog(buggy, metrics))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path)

    with caplog.at_level(logging.INFO):
        answer = asyncio.run(get())
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "internal_error"
    assert "secret" not in answer.text
    assert "ZeroDivisionError" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text
    assert b'status="500"' in metrics.render()

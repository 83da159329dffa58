"""A response of a conversation ends with its last event, whatever fails in it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from galley.errors import GalleyError, Unavailable
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel
from galley.protocols.openai.realtime.conversation_schemas import Answers
from galley.protocols.openai.realtime.items import Items
from galley.protocols.openai.realtime.outbox import Outbox
from galley.protocols.openai.realtime.response import Models, Response


def no_caller(part: str) -> Caller:
    raise AssertionError(part)


@pytest.mark.parametrize(
    ("error", "code"),
    [(Unavailable("it loads", retry_after=1), "engine_not_ready"), (ZeroDivisionError(), None)],
)
@pytest.mark.parametrize("modality", ["text", "audio"])
def test_a_response_that_fails_says_so(
    error: Exception, code: str | None, modality: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Mapping[str, Any]] = []

    async def send(event: Mapping[str, Any]) -> None:
        sent.append(event)

    async def fails() -> ServedModel:
        raise error

    models = Models(language=fails, voice=fails)
    answers = Answers(modality=modality)
    response = Response("resp_1", models, no_caller, Items(), answers, Outbox(send))
    asyncio.run(asyncio.wait_for(response.run(), 60))
    assert [event["type"] for event in sent] == ["response.created", "response.done"]
    done = sent[-1]["response"]
    assert done["status"] == "failed"
    if code is not None:
        assert done["status_details"]["error"]["code"] == code
    assert ("response resp_1 failed" in caplog.text) == (not isinstance(error, GalleyError))

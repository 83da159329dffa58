"""A protocol of one route, in one file, and the line that serves it: ``POST /shout``, answers in capitals.

``python -m tests.server.shout serve MODEL`` is ``galley serve`` with it.
"""

import sys
from collections.abc import AsyncGenerator
from typing import Self, TypedDict, cast

from starlette.requests import Request
from starlette.responses import Response

from galley.cli.main import main
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.chat import converse
from galley.gateway.generation import Generation
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.common.generated import whole_answer
from galley.protocols.common.messages import Strict
from galley.protocols.http.admit import admit
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import EventStream, respond, while_connected
from galley.server import app
from galley.tools.conversation import Conversation
from galley.types import SamplingParams

PATH = "/shout"


class ShoutRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /shout`."""

    model: str | None = None
    say: str
    stream: bool = False


class Shouted(TypedDict):
    """The answer."""

    text: str


class Shout:
    """The answer to one request."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.close = generation.close

    @classmethod
    async def start(cls, served: ServedModel, body: ShoutRequest, caller: Caller) -> Self:
        with opened(Call(served, PATH, caller)) as call:
            conversation = Conversation(messages=[{"role": "user", "content": body.say}])
            params = SamplingParams(max_tokens=8, temperature=0.0)
            return cls(await converse(call, conversation, params))

    async def whole(self) -> Shouted:
        answer, _ = await whole_answer(self._generation)
        return {"text": answer.text.upper()}

    async def events(self) -> AsyncGenerator[Shouted, None]:
        yield await self.whole()


def routes(models: Registry) -> list[Operation]:
    """The route, answered by ``models``."""

    async def shout(request: Request) -> Response:
        """Answer loudly."""
        body, caller, served = await admit(
            models, request, ShoutRequest, "generate", prompt=lambda body: body.say
        )
        answer = await while_connected(request.receive, Shout.start(served, body, caller))
        return await respond(request, answer, EventStream if body.stream else None)

    return [
        Operation("POST", PATH, shout, tag="shout", body=ShoutRequest, answers={200: Shouted}),
    ]


if __name__ == "__main__":
    app.PROTOCOLS = (*app.PROTOCOLS, cast(app.Served, sys.modules[__name__]))
    main()

"""The whole of a generated answer."""

from contextlib import aclosing

from galley.gateway.generation import Finish, Generation
from galley.tools.events import Answer, Event, whole


async def whole_answer(generation: Generation) -> tuple[Answer, Finish | None]:
    """The only choice of ``generation``, and why it ended. Raises EngineError or Draining."""
    events: list[Event] = []
    finish: Finish | None = None
    async with aclosing(generation.pieces()) as pieces:
        async for piece in pieces:
            events += piece.events
            finish = piece.finish or finish
    return whole(events), finish
